"""The prefix cache: names, index and allocation of logical blocks, and the memory behind them."""
