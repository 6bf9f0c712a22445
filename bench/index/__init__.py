"""The index beside Dynamo's: hashing, look-up, ingest and memory on one seeded workload."""
