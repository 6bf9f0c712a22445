"""The width at which one lane's blocks leave the engine, learnt from the events themselves.

The descriptor only advertises a width; engines have advertised their physical page while their events carried the
block width. So events win, and the advertised width stands in until the first of them.

Not every event with another block_size is a new width. vLLM's hybrid models announce the full units of a block that is
not full yet (one hash, a smaller block_size), and up to 0.19 several cache groups under no name, where a coarser group
repeats hashes of the finer one. Neither moves the width. Anything else does: the last one emitted wins.
"""

from __future__ import annotations

from contract.events import BlockStored

__all__ = ["LaneWidth", "Shape"]

Shape = tuple[int, bool]
"""Tokens per block, and whether they are pairs: lanes of one shape have the same keys for the same prompt."""

_MOST_SEEN = 16


class LaneWidth:
    """``emitted`` tokens (pairs where ``pairs``) per block, or None before the first store that tells.

    ``shape`` is what to hash prompts at, and how; None while nobody has told.
    """

    def __init__(self, advertised: int | None) -> None:
        self.advertised = advertised
        self.shape: Shape | None = (advertised, False) if advertised else None
        self.emitted: int | None = None
        self.pairs = False
        self.seen: list[int] = []
        self._settled = False

    @property
    def current(self) -> int | None:
        """What to hash prompts at."""
        return self.advertised if self.emitted is None else self.emitted

    def agrees(self, event: BlockStored) -> bool:
        """Whether a store's blocks are of the lane's width as known now."""
        return self._settled and event.block_size == self.emitted and event.pairs == self.pairs

    def admits(self, event: BlockStored, *, news: bool) -> bool:
        """Take a dense store into account; whether its blocks then belong to the chains at the lane's width.

        ``news`` says that some of its hashes are not held yet.
        """
        if self.agrees(event):
            return True
        if self._settled and (not news or self._partial(event)):
            return False
        self.emitted, self.pairs, self._settled = event.block_size, event.pairs, True
        self.shape = (self.emitted, self.pairs)
        if event.block_size not in self.seen:
            self.seen = [*self.seen, event.block_size][-_MOST_SEEN:]
        return True

    def unsettle(self) -> None:
        """Nothing is held any more: the next store tells the width, whatever it is."""
        self._settled = False

    def forget(self) -> None:
        """Another engine may stand behind the stream now: back to what was advertised."""
        self.emitted, self.pairs, self.seen, self._settled = None, False, [], False
        self.shape = (self.advertised, False) if self.advertised else None

    def _partial(self, event: BlockStored) -> bool:
        """Whether a store looks like one unit of a block that is not full yet."""
        assert self.emitted is not None
        smaller = event.block_size < self.emitted and self.emitted % event.block_size == 0
        return smaller and len(event.block_hashes) == 1 and event.pairs == self.pairs
