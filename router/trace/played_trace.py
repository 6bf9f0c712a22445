"""A trace as a test asks about it: lanes, what they hold, requests, and everything that is wrong with them.

Faults are those of the router's own diagnoses, from the same facts: streams as they were heard, and each finished
request's prediction beside the engine's report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from router.intake.index import BlockIndex
from router.prompt import Prompt
from router.proof.facts import LaneFacts
from router.proof.fault import Fault
from router.proof.faults import lane_faults
from router.proof.tally import LaneTally, Outcome
from router.proof.witness import witness
from router.trace.chunk import TraceFileError
from router.trace.reader import TraceReader
from router.trace.recorded_prompt import RecordedPrompt
from router.trace.records import Began, Record, Skipped
from router.trace.replayer import LaneName, ReplayedLane, Replayer
from router.trace.requests import OpenRequests, TracedRequest

__all__ = ["PlayedTrace"]


class PlayedTrace:
    """A trace that is played by ``step``, by ``steps``, or to its end by ``run``.

    Raises:
        TraceFileError: on the way, where the file cannot be read or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.requests: list[TracedRequest] = []
        self._reader = TraceReader(path)
        self._records = iter(self._reader)
        self._replayer = Replayer()
        self._open = OpenRequests()
        self._tallies: dict[LaneName, LaneTally] = {}
        self._now = 0.0

    @property
    def index(self) -> BlockIndex:
        """What all lanes hold now, as their events tell."""
        return self._replayer.index

    @property
    def lanes(self) -> Sequence[ReplayedLane]:
        """Every lane that was named so far."""
        return list(self._replayer.lanes.values())

    def lane(self, url: str, dp_rank: int = 0) -> ReplayedLane:
        """One lane.

        Raises:
            KeyError: the trace has not named it so far.
        """
        return self._replayer.lanes[LaneName(url, dp_rank)]

    def matched_tokens(self, token_ids: Sequence[int]) -> Mapping[LaneName, int]:
        """How much of a prompt each lane holds from its first token on."""
        handles = {lane.handle: lane.name for lane in self.lanes}
        found = self.index.match(Prompt(token_ids), handles)
        return {handles[handle]: match.tokens for handle, match in found.items()}

    @property
    def faults(self) -> Mapping[LaneName, Sequence[Fault]]:
        """What is wrong now, lane by lane; lanes with nothing wrong are left out."""
        judged = {lane.name: lane_faults(self._facts(lane)) for lane in self.lanes}
        return {name: faults for name, faults in judged.items() if faults}

    def check(self) -> None:
        """Fail where anything is wrong, and say everything that is.

        Raises:
            AssertionError: a line a fault, and what to do about it.
        """
        lines = [
            f"{name}: {fault.code}: {fault.detail}. To do: {fault.advice}."
            for name, faults in self.faults.items()
            for fault in faults
        ]
        if lines:
            raise AssertionError("\n".join(lines))

    def step(self) -> Record | None:
        """Play one record, and say which; None at the end."""
        record = next(self._records, None)
        if record is None:
            self._enter(self._open.rest())
            return None
        if isinstance(record, Skipped):
            raise TraceFileError(f"{self._reader.path} is damaged: {record.size} bytes from byte {record.offset} on")
        self._now = max(self._now, getattr(record, "at", 0.0))
        if isinstance(record, Began):
            self._enter(self._open.feed(record))
            self._replayer.feed(record)
        else:
            self._replayer.feed(record)
            self._enter(self._open.feed(record))
        return record

    def steps(self) -> Iterator[Record]:
        """Play record by record to the end; between two of them, ask."""
        while (record := self.step()) is not None:
            yield record

    def run(self) -> PlayedTrace:
        """Play to the end."""
        for _ in self.steps():
            pass
        return self

    def _enter(self, requests: Sequence[TracedRequest]) -> None:
        for request in requests:
            self.requests.append(request)
            if request.routed.lane is not None:
                self._record(request, self._replayer.lane(request.routed.lane))

    def _record(self, request: TracedRequest, lane: ReplayedLane) -> None:
        routed, served = request.routed, request.served
        tally = self._tally(lane)
        tally.routed += 1
        if served is None or served.prompt_tokens is None or routed.prompts > 1:
            return
        tally.record(_outcome(request, lane, self.index), batches=lane.status.batches)

    def _tally(self, lane: ReplayedLane) -> LaneTally:
        return self._tallies.setdefault(lane.name, LaneTally())

    def _facts(self, lane: ReplayedLane) -> LaneFacts:
        status, stats = lane.status, self.index.stats(lane.handle)
        replica, joined = self._replayer.replicas.get(lane.name.url), lane.joined
        return LaneFacts(
            dp_rank=lane.name.dp_rank,
            engine=(None if replica is None else replica.engine) or "",
            endpoint=None if joined is None else joined.endpoint,
            no_events=None if replica is None else replica.no_events,
            stream_state=status.state,
            stream_reason=status.reason,
            batches=status.batches,
            lost=status.lost,
            complete=status.known_from == 0,
            advertised_width=lane.advertised_block_size,
            emitted_widths=stats.widths_seen,
            tally=self._tally(lane),
            first_blocks=self.index.first_blocks(lane.handle),
            now=self._now,
        )


def _outcome(request: TracedRequest, lane: ReplayedLane, index: BlockIndex) -> Outcome:
    """A finished request as the router's diagnoses take it."""
    routed, served = request.routed, request.served
    assert served is not None, "only a request that has ended has an outcome"
    assert served.prompt_tokens is not None, "without the engine's account there is nothing to compare"
    prompt = RecordedPrompt(routed) if routed.prefixes else None
    seen = None
    if prompt is not None:
        engines = index.engines(lane.handle)
        seen = witness(prompt, width=lane.width, pairs=lane.pairs, engines=engines, holds=lambda _: 0)
    return Outcome(
        prompt_tokens=served.prompt_tokens,
        counted_tokens=None if prompt is None else routed.prompt_tokens,
        predicted=routed.predicted,
        reported=served.reported,
        width=lane.width,
        witness=seen,
        at=served.at,
    )
