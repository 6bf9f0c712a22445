"""The compiled cores that a router uses where they were built."""

from __future__ import annotations

__all__ = ["CORES"]

CORES = ("contract._keys", "contract.events._wire", "router.intake._table", "router.intake._zmtp")
