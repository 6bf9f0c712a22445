"""Recorded and made-up traffic as one stream of requests, told by block ids: what a simulated fleet is asked."""
