"""End to end: one fleet of simulated engines, one workload, one router after the other."""
