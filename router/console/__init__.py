"""Commands for people at a terminal: ``check`` judges a running fleet, ``top`` watches a router."""
