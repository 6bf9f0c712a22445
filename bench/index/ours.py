"""Our index as a subject: from a payload's bytes through stream tracking into the index, from ids to tokens."""

from __future__ import annotations

from collections.abc import Sequence

from bench.index.trial import main
from bench.index.wire import payload
from bench.index.workload import Stored
from contract.framing import Frame
from contract.hashing import block_keys
from router.intake.index import BlockIndex
from router.intake.stream import Apply, LaneStream
from router.prompt import Prompt

__all__ = ["OurIndex"]


class OurIndex:
    """A `Subject`."""

    def __init__(self, lanes: int, block: int) -> None:
        self._block = block
        self._index = BlockIndex()
        self._handles = [self._index.add_lane() for _ in range(lanes)]
        self._lanes = {handle: lane for lane, handle in enumerate(self._handles)}
        self._sent = [-1] * lanes
        self._streams = [LaneStream(can_replay=False) for _ in range(lanes)]

    def prepare(self, event: Stored) -> tuple[int, bytes]:
        """See `Subject`."""
        return event.lane, payload(event, self._block)

    def apply(self, event: tuple[int, bytes]) -> None:
        """See `Subject`."""
        lane, packed = event
        self._sent[lane] += 1
        for action in self._streams[lane].live(Frame(b"", self._sent[lane], packed), now=0.0):
            assert isinstance(action, Apply), f"a stream without gaps is only applied, not {action}"
            self._index.apply(self._handles[lane], action.batch)

    def keys(self, ids: list[int]) -> Sequence[int]:
        """See `Subject`."""
        return block_keys(ids, width=self._block)

    def named(self, ids: list[int]) -> Prompt:
        """See `Subject`."""
        prompt = Prompt(ids)
        self._index.holders(prompt)
        return prompt

    def look_up(self, keys: Prompt) -> dict[int, int]:
        """See `Subject`."""
        found = self._index.holders(keys)
        return {self._lanes[handle]: match.tokens for handle, match in found.items()}

    def match(self, ids: list[int]) -> dict[int, int]:
        """See `Subject`."""
        return self.look_up(Prompt(ids))


if __name__ == "__main__":
    main(OurIndex)
