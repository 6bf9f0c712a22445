"""GPU kernels, one a file, each beside its torch reference, which also serves where there is no GPU."""
