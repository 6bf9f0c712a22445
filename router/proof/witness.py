"""What a finished request leaves behind for diagnosis: how its prompt began, and whether a namespace hid it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from router.prompt import Prompt

__all__ = ["Witness", "witness"]

KEPT_IDS = 64


class Witness(msgspec.Struct, frozen=True, kw_only=True):
    """``namespaced``: an adapter or a salt belongs to it; ``plain_tokens`` is what the lane holds of it without them.

    ``first_key`` is the key of its first block (None: it fills none), ``head`` its first token ids. ``engines`` counts
    those that stood behind the lane before the one that served it.
    """

    namespaced: bool
    plain_tokens: int
    first_key: int | None
    head: Sequence[int]
    engines: int = 0


def witness(prompt: Prompt, *, width: int | None, pairs: bool, engines: int, holds: Callable[[Prompt], int]) -> Witness:
    """Look at a prompt that was served on a lane; ``holds`` tells how many tokens of a prompt the lane holds now."""
    keys = prompt.keys(width=width, pairs=pairs) if width else ()
    return Witness(
        namespaced=prompt.namespaced,
        plain_tokens=holds(prompt.plain()) if prompt.namespaced else 0,
        first_key=keys[0] if keys else None,
        head=prompt.head(KEPT_IDS),
        engines=engines,
    )
