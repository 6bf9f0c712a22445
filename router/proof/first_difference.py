"""Where a prompt as this router tokenized it parts from the nearest prompt that the engine told of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

__all__ = ["Difference", "first_difference"]

MOST_SHIFT = 8
ALIKE = 4
"""A prompt that shares fewer places than one in so many is another prompt, not another spelling of this one."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """At index ``at`` the engine has ``there`` where the router has ``here``.

    ``shift`` is how many tokens the engine has in front that the router has not; negative: the reverse.
    """

    at: int
    here: int
    there: int
    shift: int


def first_difference(here: Sequence[int], others: Iterable[Sequence[int]]) -> Difference | None:
    """The first difference to the most alike of ``others``; None where none is alike, or one is the same."""
    best, nearest, shift = 0, None, 0
    for other in others:
        for by in sorted(range(-MOST_SHIFT, MOST_SHIFT + 1), key=abs):
            same = _same_places(here, other, shift=by)
            if same > best:
                best, nearest, shift = same, other, by
    if nearest is None or best * ALIKE < min(len(here), len(nearest)):
        return None
    for at, (one, two) in enumerate(zip(here, nearest, strict=False)):
        if one != two:
            return Difference(at=at, here=one, there=two, shift=shift)
    return None


def _same_places(here: Sequence[int], there: Sequence[int], *, shift: int) -> int:
    one, two = (here, there[shift:]) if shift >= 0 else (here[-shift:], there)
    return sum(map(int.__eq__, one, two))
