"""Small traces made by hand, record by record, as a recorder would have written them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fake_engine import stored

from contract.events import Dialect, Event, encode_batch
from router.prompt import Prompt
from router.trace.records import (
    Began,
    FirstToken,
    FrameHeard,
    LaneNamed,
    PrefixKeys,
    Record,
    ReplicaSeen,
    Routed,
    Served,
    StreamJoined,
    pack_keys,
)
from router.trace.writer import TraceWriter

__all__ = ["WIDTH", "MadeTrace", "store"]

WIDTH = 6

store = partial(stored, width=WIDTH)
"""The store of a prompt's full blocks of these lanes."""


class MadeTrace:
    """Lanes of ``urls``, one each, all joined at the start; every record comes a second after the one before."""

    def __init__(self, *urls: str, advertised: int = WIDTH, can_replay: bool = False) -> None:
        self.records: list[Record] = []
        self._requests = 0
        self._seq = dict.fromkeys(range(len(urls)), 0)
        self.add(Began(at=self.at, program="test", version="1", source="made by hand"))
        for lane, url in enumerate(urls):
            self.add(
                ReplicaSeen(
                    at=self.at,
                    url=url,
                    state="healthy",
                    engine="sglang",
                    version="0.5.23",
                    models=("m",),
                    dp_size=1,
                    block_size=advertised,
                    no_events=None,
                    trouble=None,
                )
            )
            self.add(LaneNamed(lane=lane, url=url, dp_rank=0))
            self.join(lane, advertised=advertised, can_replay=can_replay)

    @property
    def at(self) -> float:
        return 1_000.0 + len(self.records)

    def add(self, record: Record) -> None:
        self.records.append(record)

    def join(self, lane: int, *, advertised: int = WIDTH, can_replay: bool = False) -> None:
        self.add(
            StreamJoined(
                at=self.at,
                lane=lane,
                endpoint=f"tcp://10.0.0.{lane}:5557",
                topic="kv",
                can_replay=can_replay,
                block_size=advertised,
            )
        )

    def frame(self, lane: int, *events: Event, seq: int | None = None, replayed: bool = False) -> None:
        number = self._seq[lane] if seq is None else seq
        self._seq[lane] = number + 1
        payload = encode_batch(events, ts=float(number), dp_rank=None, dialect=Dialect.SGLANG)
        self.add(FrameHeard(at=self.at, lane=lane, replayed=replayed, topic=b"kv", seq=number, payload=payload))

    def request(
        self, lane: int, tokens: Sequence[int], *, predicted: int, reported: int | None, widths: Sequence[int] = (2, 6)
    ) -> None:
        """A request that was routed and served before anything else happened."""
        number, prompt = self._requests, Prompt(tokens[:-1])
        self._requests += 1
        self.add(
            Routed(
                at=self.at,
                request=number,
                lane=lane,
                lanes=list(self._seq),
                model="m",
                prompt_tokens=len(tokens),
                prompts=1,
                stream=True,
                predicted=predicted,
                pending=0,
                namespaced=False,
                prefixes=[PrefixKeys(width, False, pack_keys(prompt.keys(width=width))) for width in widths],
            )
        )
        self.add(FirstToken(at=self.at, request=number))
        self.add(
            Served(
                at=self.at,
                request=number,
                first_after=1.0,
                prompt_tokens=len(tokens),
                reported=reported,
                output_tokens=3,
            )
        )

    def write(self, path: Path) -> Path:
        with TraceWriter(path) as writer:
            for record in self.records:
                writer.write(record)
        return path
