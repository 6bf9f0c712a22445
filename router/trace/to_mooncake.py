"""A trace's requests as a Mooncake-format workload: arrival times, lengths, and ids for blocks of 512 tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from router.trace.mooncake import BLOCK_TOKENS, TraceRow
from router.trace.records import Began, PrefixKeys, Record, Routed, Served, Skipped
from router.trace.requests import MAX_OPEN

__all__ = ["MooncakeRows", "row_line"]


class _Waiting:
    """A request whose answer's length is not known yet."""

    def __init__(self, routed: Routed, hash_ids: list[int]) -> None:
        self.routed = routed
        self.hash_ids = hash_ids
        self.output_tokens: int | None = None
        self.given_up = False


class MooncakeRows:
    """Turns records into rows, in order of arrival. ``left_out`` requests had prompts that nobody knows,
    or that are not as long as their keys say.

    Equal prefixes of whole blocks have equal ids; those of a workload keep theirs. The rest of a prompt that fills no
    block, or that only its last token completes, has an id of its own: nobody can say what else it is equal to.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._ids: dict[int, int] = {}
        self._given = 0
        self._queue: deque[_Waiting] = deque()
        self._open: dict[int, _Waiting] = {}
        self._first: float | None = None

    def rows(self, records: Iterable[Record]) -> Iterator[TraceRow]:
        """All rows."""
        for record in records:
            match record:
                case Began() | Skipped():
                    self._open.clear()
                    yield from self._ready(all_of_them=True)
                case Routed():
                    self._enter(record)
                case Served():
                    self._end(record)
            yield from self._ready(all_of_them=len(self._queue) > MAX_OPEN)
        yield from self._ready(all_of_them=True)

    def _enter(self, routed: Routed) -> None:
        hash_ids = self._hash_ids(routed)
        if hash_ids is None:
            self.left_out += 1
            return
        waiting = self._open[routed.request] = _Waiting(routed, hash_ids)
        self._queue.append(waiting)

    def _end(self, served: Served) -> None:
        waiting = self._open.pop(served.request, None)
        if waiting is not None:
            waiting.output_tokens = served.output_tokens or 0
            waiting.given_up = waiting.routed.lane is not None and served.first_after is None

    def _ready(self, *, all_of_them: bool) -> Iterator[TraceRow]:
        """Rows at the head of the queue; an attempt that brought nothing is followed by another one, and is no row."""
        while self._queue and (all_of_them or self._queue[0].output_tokens is not None):
            waiting = self._queue.popleft()
            self._open.pop(waiting.routed.request, None)
            if not waiting.given_up:
                yield self._row(waiting)

    def _row(self, waiting: _Waiting) -> TraceRow:
        routed = waiting.routed
        self._first = routed.at if self._first is None else self._first
        since = routed.at if routed.lane is None else routed.at - self._first
        return TraceRow(
            timestamp=round(since * 1000, 3),
            input_length=routed.prompt_tokens,
            output_length=waiting.output_tokens or 0,
            hash_ids=waiting.hash_ids,
        )

    def _hash_ids(self, routed: Routed) -> list[int] | None:
        usable = [one for one in routed.prefixes if not one.pairs and BLOCK_TOKENS % one.width == 0]
        if not usable:
            return None
        keys = _block_keys(max(usable, key=lambda prefix: prefix.width))
        blocks = -(-routed.prompt_tokens // BLOCK_TOKENS)
        if routed.lane is None:
            return list(keys) if len(keys) == blocks else None
        if not blocks - 1 <= len(keys) <= blocks:
            return None
        ids = [self._id_of(key) for key in keys]
        return ids if len(ids) == blocks else [*ids, self._new_id()]

    def _id_of(self, key: int) -> int:
        if key not in self._ids:
            self._ids[key] = self._new_id()
        return self._ids[key]

    def _new_id(self) -> int:
        self._given += 1
        return self._given - 1


def _block_keys(prefix: PrefixKeys) -> Sequence[int]:
    """Keys at every 512 tokens: a chain names whole prefixes, so a finer one has them among its own."""
    step = BLOCK_TOKENS // prefix.width
    return prefix.keys[step - 1 :: step]


def row_line(row: TraceRow) -> bytes:
    """A row as a line; whole milliseconds as whole numbers."""
    fields = msgspec.structs.asdict(row)
    if row.timestamp == int(row.timestamp):
        fields["timestamp"] = int(row.timestamp)
    return msgspec.json.encode(fields) + b"\n"
