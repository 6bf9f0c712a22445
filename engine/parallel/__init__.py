"""Ranks: how a world of them is laid out, and how its members exchange tensors."""
