"""Dynamo's index in this process, as a subject: what its Python binding offers. Runs in the peer's own environment."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dynamo._core import RadixTree, compute_block_hash_for_seq  # type: ignore[import-not-found]  # the peer's

from bench.index.trial import main
from bench.index.workload import Stored

__all__ = ["DynamoTree"]


class DynamoTree:
    """A `Subject`. Events go in as the JSON that the binding takes, with the blocks hashed before."""

    def __init__(self, lanes: int, block: int) -> None:
        self._block = block
        self._tree = RadixTree()

    def prepare(self, event: Stored) -> tuple[int, bytes]:
        """See `Subject`."""
        hashes = compute_block_hash_for_seq(event.tokens.tolist(), self._block)
        blocks = [{"block_hash": name, "tokens_hash": one} for name, one in zip(event.names, hashes, strict=True)]
        data = {"stored": {"parent_hash": event.parent, "blocks": blocks}}
        return event.lane, json.dumps({"event_id": 0, "data": data, "dp_rank": 0}, separators=(",", ":")).encode()

    def apply(self, event: tuple[int, bytes]) -> None:
        """See `Subject`."""
        self._tree.apply_event(*event)

    def keys(self, ids: list[int]) -> Sequence[int]:
        """See `Subject`."""
        hashes: list[int] = compute_block_hash_for_seq(ids, self._block)
        return hashes

    def named(self, ids: list[int]) -> Sequence[int]:
        """See `Subject`."""
        return self.keys(ids)

    def look_up(self, keys: Sequence[int]) -> dict[int, int]:
        """See `Subject`."""
        return {lane: blocks * self._block for (lane, _), blocks in self._tree.find_matches(keys).scores.items()}

    def match(self, ids: list[int]) -> dict[int, int]:
        """See `Subject`."""
        return self.look_up(self.keys(ids))


if __name__ == "__main__":
    main(DynamoTree)
