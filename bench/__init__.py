"""Runs fleets of real processes and measures them: the demo and the clients, workloads and reports behind it."""
