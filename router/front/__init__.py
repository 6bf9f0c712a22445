"""HTTP: the routed endpoints, and what the router says of itself."""
