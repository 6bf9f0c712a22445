"""A taped stream: whatever it was told, and in whatever order, a reader of the tape ends in the same state."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_trace import store

from contract.events import AllBlocksCleared, Dialect, encode_batch
from contract.framing import Frame
from router.intake.index import BlockIndex
from router.intake.stream import Action, Apply, Clear
from router.trace.chunk import TraceFileError
from router.trace.reader import TraceReader
from router.trace.recorder import Recorder, recording
from router.trace.records import LaneNamed, StreamJoined
from router.trace.replayer import Replayer
from router.trace.taped_stream import TapedStream

ENGINES = [
    [
        encode_batch(
            [store([engine * 50 + seq] * 6)] if seq % 4 else [AllBlocksCleared()],
            ts=float(seq),
            dp_rank=None,
            dialect=Dialect.SGLANG,
        )
        for seq in range(8)
    ]
    for engine in range(2)
]
FRAMES = st.builds(
    lambda engine, seq: Frame(b"kv", seq, ENGINES[engine][seq]), st.integers(0, 1), st.integers(0, 7)
) | st.builds(lambda seq: Frame(b"kv", seq, b"no batch"), st.integers(0, 7))
INPUTS = st.one_of(
    st.tuples(st.just("live"), FRAMES),
    st.tuples(st.just("replayed"), FRAMES),
    st.sampled_from(["connected", "check", "replay_again", "replay_ended", "replay_failed"]).map(
        lambda name: (name, None)
    ),
)


def tell(stream: TapedStream, name: str, frame: Frame | None, *, at: float) -> list[Action]:
    match name, frame:
        case "live", Frame():
            return stream.live(frame, now=at)
        case "replayed", Frame():
            return stream.replayed(frame)
        case "replay_again", None:
            stream.replay_again()
            return []
        case "replay_failed", None:
            return stream.replay_failed("nobody answers")
    actions: list[Action] = getattr(stream, name)()
    return actions


@given(inputs=st.lists(INPUTS, max_size=40), can_replay=st.booleans())
def test_the_tape_leads_to_the_same_status_and_the_same_blocks(
    inputs: list[tuple[str, Frame | None]], can_replay: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.kvtrace"
    path.unlink(missing_ok=True)
    index = BlockIndex()
    handle = index.add_lane(advertised_width=6)
    with recording(path, source="a test", failed=pytest.fail) as recorder:
        lane = recorder.lane("http://h:1", 0)
        recorder.note(
            StreamJoined(at=0.0, lane=lane, endpoint="tcp://h:2", topic="", can_replay=can_replay, block_size=6)
        )
        stream = TapedStream(recorder, lane, can_replay=can_replay)
        for at, (name, frame) in enumerate(inputs):
            for action in tell(stream, name, frame, at=float(at)):
                match action:
                    case Apply(batch):
                        index.apply(handle, batch)
                    case Clear():
                        index.clear(handle)
    replayer = Replayer()
    for record in TraceReader(path):
        replayer.feed(record)
    (replayed,) = replayer.lanes.values()
    assert replayed.status == stream.status
    assert set(replayer.index.blocks(replayed.handle)) == set(index.blocks(handle))


class FullDisk:
    """A file that takes so many records and no more."""

    def __init__(self, takes: int) -> None:
        self.written: list[object] = []
        self._takes = takes

    def write(self, record: object) -> None:
        if len(self.written) == self._takes:
            raise TraceFileError("the disk is full")
        self.written.append(record)

    def close(self) -> None:
        self._takes = 0


def test_a_recorder_says_once_that_it_cannot_go_on(tmp_path: Path) -> None:
    said, clock = list[TraceFileError](), itertools.count()
    recorder = Recorder(FullDisk(2), source="a test", failed=said.append, clock=lambda: float(next(clock)))  # type: ignore[arg-type]
    assert recorder.lane("http://h:1", 0) == 0
    assert recorder.lane("http://h:1", 0) == 0, "it is named once"
    for rank in (1, 2):
        recorder.note(LaneNamed(lane=rank, url="http://h:1", dp_rank=rank))
    assert [str(error) for error in said] == ["the disk is full"]
