"""Which lanes of a large fleet a rule of choice must see. A value that rules carry."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from router.choice.load import LaneLoad

__all__ = ["Cut"]


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """``at_most`` lanes, those of the least rough cost; in a fleet that is no larger, all of them.

    ``burden`` is what a lane has to do, as its books say at a time. ``uncached_weight`` is what a token of the prompt
    that must be computed weighs beside a burden of one; the rough cost is then the sum of both, in seconds. 0: only
    the burden counts, whatever is cached and however fast a lane is.
    """

    at_most: int
    burden: Callable[[LaneLoad, float], float]
    uncached_weight: float = 0.0
