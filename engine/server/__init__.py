"""The HTTP side of an engine: one file a surface. Knows nothing of models, caches or publishers."""
