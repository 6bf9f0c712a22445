"""The map that the index is made of: the compiled one where it was built, the plain one elsewhere."""

from __future__ import annotations

from contract.keys_core import PLAIN_ONLY

__all__ = ["Table"]

if PLAIN_ONLY:
    from router.intake.plain_table import Table
else:
    try:
        from router.intake._table import Table
    except ImportError:
        from router.intake.plain_table import Table
