"""What the engine's and the router's program have in common around what they serve, of which nothing is known here."""
