"""Runners carry out a forward pass: one on torch, one on a clock."""
