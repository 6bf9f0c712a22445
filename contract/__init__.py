"""What travels between engines and routers, and the one home of the block width. No I/O, nothing of ours imported."""
