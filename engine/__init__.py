"""A small, real engine: radix-paged cache sharded over DCP ranks, continuous batching, an HTTP server, KV events."""
