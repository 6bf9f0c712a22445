"""The router: from a fleet of engine URLs to the replica that holds most of a prompt."""
