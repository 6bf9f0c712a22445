"""The demo: one fleet, one workload, two policies, and whether the contract held."""
