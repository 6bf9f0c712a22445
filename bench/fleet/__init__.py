"""The fleet simulator: real caches, event streams, index and policies on a virtual clock.

A request of a workload is chosen a replica by a router, waits there for its prefill, is computed at the replica's speed
less what the replica's cache holds, and decodes. What caches store and evict reaches the routers as encoded event
batches, late or never where the plan says so. Nothing sleeps, and one seed decides everything.
"""
