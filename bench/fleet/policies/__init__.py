"""The rules of choice that a simulated fleet can run, ours and others', by name."""
