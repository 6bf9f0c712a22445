"""Routers side by side: what each adds to a request, what it costs, and whether it chose right."""
