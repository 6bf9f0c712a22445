"""The blocks that began a chain lately: what an engine's prompts look like from token 0.

Kept for diagnosis only: a prompt that was served and whose first block never appears here is another prompt there.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence

__all__ = ["FirstBlocks"]

KEPT_BLOCKS = 1024
KEPT_IDS = 64


class FirstBlocks:
    """The latest ``KEPT_BLOCKS`` first blocks by key, with their first ``KEPT_IDS`` token ids.

    ``engines`` counts the engines that stood behind the lane before.
    """

    def __init__(self) -> None:
        self.engines = 0
        self._ids: dict[int, array[int]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, key: object) -> bool:
        return key in self._ids

    def note(self, key: int, ids: Sequence[int], *, pairs: bool) -> None:
        """A block that starts at token 0 was announced. In pairs every id but the ends is there twice."""
        self._ids.pop(key, None)
        self._ids[key] = array("Q", ids[: 2 * KEPT_IDS : 2] if pairs else ids[:KEPT_IDS])
        if len(self._ids) > KEPT_BLOCKS:
            del self._ids[next(iter(self._ids))]

    def latest(self, count: int) -> list[Sequence[int]]:
        """Ids of the latest blocks, the latest first."""
        return list(itertools.islice(reversed(self._ids.values()), count))

    def clear(self) -> None:
        """Another engine may stand behind the lane now."""
        self._ids.clear()
        self.engines += 1
