"""A ``.kvtrace`` on the disk: whatever is cut off, everything before it is there; damage is named and never hidden."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.trace.chunk import MAGIC, TraceFileError, read_chunks
from router.trace.reader import TraceReader
from router.trace.records import Began, FrameHeard, LaneNamed, Record, Skipped, StreamJoined, StreamLeft
from router.trace.writer import TraceWriter

BEGAN = Began(at=1.0, program="test", version="1", source="a test")
NAMED = LaneNamed(lane=1, url="http://10.0.0.1:30000", dp_rank=0)


def frame(seq: int, *, size: int = 40) -> FrameHeard:
    return FrameHeard(
        at=seq / 4, lane=1, replayed=False, topic=b"kv", seq=seq, payload=bytes(i * seq % 251 for i in range(size))
    )


def write(path: Path, records: Sequence[Record]) -> list[int]:
    """Append records; where the file ended after each of them."""
    ends = []
    with TraceWriter(path) as writer:
        for record in records:
            writer.write(record)
            ends.append(writer.end)
    return ends


def read(path: Path) -> list[Record]:
    return list(TraceReader(path))


JOINED = StreamJoined(at=1.0, lane=1, endpoint="tcp://10.0.0.1:5557", topic="kv", can_replay=True, block_size=16)
LATER = Began(at=500.0, program="test", version="1", source="another test")
RECORDS: list[Record] = [BEGAN, NAMED, *map(frame, range(5)), frame(5, size=300_000), StreamLeft(at=9.0, lane=1)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[int]]:
    """The bytes of a trace, and where each of its records ends."""
    path = tmp_path_factory.mktemp("trace") / "whole.kvtrace"
    ends = write(path, RECORDS)
    return path.read_bytes(), ends


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.kvtrace"
    write(path, RECORDS)
    reader = TraceReader(path)
    assert (list(reader), reader.torn) == (RECORDS, False)
    assert list(reader) == RECORDS, "a trace is read as often as it is iterated over"


def test_a_new_trace_is_for_its_owner_s_eyes(tmp_path: Path) -> None:
    write(tmp_path / "a.kvtrace", RECORDS)
    assert (tmp_path / "a.kvtrace").stat().st_mode & 0o077 == 0


def test_records_are_compressed_with_those_before_them(tmp_path: Path) -> None:
    repeated = [BEGAN, NAMED, *[frame(7, size=1_000)] * 50]
    assert write(tmp_path / "a.kvtrace", repeated)[-1] < 15_000


def chunk_ends(whole: bytes) -> list[int]:
    """Where chunks end, of records and of reminders."""
    return [chunk.end for chunk in read_chunks(io.BytesIO(whole[len(MAGIC) :]), name="whole")]


@given(cut=st.integers(0, 10**9))
def test_a_file_cut_anywhere_gives_all_records_before_the_cut(
    cut: int, written: tuple[bytes, list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A killed recorder leaves its file at any byte: what was whole stays, and the next recorder goes on behind it."""
    whole, ends = written
    cut %= len(whole) + 1
    path = tmp_path_factory.getbasetemp() / "cut.kvtrace"
    path.write_bytes(whole[:cut])
    kept = sum(end <= cut for end in ends)
    reader = TraceReader(path)
    assert list(reader) == RECORDS[:kept]
    assert reader.torn == (cut not in (len(MAGIC), *chunk_ends(whole)))
    write(path, [BEGAN, NAMED, frame(77)])
    assert read(path) == [*RECORDS[:kept], BEGAN, NAMED, frame(77)]


LONG: list[Record] = [BEGAN, NAMED, JOINED, *map(frame, range(200)), LATER, NAMED, JOINED, *map(frame, range(200))]
"""Two recorders' work, of several zstd frames each."""

TOLD_AGAIN = (Began, LaneNamed, StreamJoined)


class Written:
    """The bytes of a trace, and where each of its records ends; Hypothesis cannot print so much."""

    def __init__(self, whole: bytes, ends: list[int]) -> None:
        self.whole, self.ends = whole, ends


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """That trace."""
    path = tmp_path_factory.mktemp("trace") / "long.kvtrace"
    half = LONG.index(LATER)
    ends = write(path, LONG[:half]) + write(path, LONG[half:])
    return Written(path.read_bytes(), ends)


def damaged(whole: bytes, place: int, *, size: int = 1) -> bytes:
    return whole[:place] + bytes(byte ^ 0x55 for byte in whole[place : place + size]) + whole[place + size :]


@given(place=st.integers(0, 10**9), size=st.integers(1, 3_000))
def test_damage_costs_the_zstd_frames_that_it_is_in_and_is_named(
    place: int, size: int, long: Written, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Behind it reading goes on with the right lanes, whoever recorded them; recorders leave the file alone."""
    whole, ends = long.whole, long.ends
    place = len(MAGIC) + place % (len(whole) - len(MAGIC))
    path = tmp_path_factory.getbasetemp() / "damaged.kvtrace"
    path.write_bytes(damaged(whole, place, size=size))
    reader = TraceReader(path)
    records = list(reader)
    (skipped,) = reader.skipped
    hole = records.index(Skipped(offset=skipped.offset, size=skipped.size))
    before = sum(end <= place for end in ends)
    assert skipped.offset in (len(MAGIC), *chunk_ends(whole))
    told, rest = records[before:hole], records[hole + 1 :]
    assert records[:before] == LONG[:before]
    assert all(isinstance(record, TOLD_AGAIN) for record in told)
    assert rest == LONG[len(LONG) - len(rest) :]
    end = skipped.offset + skipped.size
    assert end == len(whole) or end < place + size + 6_000
    assert not rest or {NAMED, JOINED} <= {*LONG[:before], *told, *rest}
    with pytest.raises(TraceFileError, match=f"is damaged at byte {skipped.offset}: record into another file"):
        TraceWriter(path)
    assert path.read_bytes() == damaged(whole, place, size=size)


def test_a_length_that_points_behind_the_end_is_no_torn_record_where_more_follow(
    tmp_path: Path,
) -> None:
    """Bytes that were taken out make the chunk before them too long for the file; what follows is still there."""
    large = [BEGAN, NAMED, frame(0, size=300_000), *LONG]
    path = tmp_path / "a.kvtrace"
    place = write(path, large)[2]
    path.write_bytes(path.read_bytes()[: place - 200] + path.read_bytes()[place:])
    reader = TraceReader(path)
    assert len(list(reader)) > len(LONG) / 2
    assert len(reader.skipped) == 1
    assert not reader.torn


def test_a_second_recorder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.kvtrace"
    with TraceWriter(path) as writer:
        writer.write(BEGAN)
        with pytest.raises(TraceFileError, match="another recorder"):
            TraceWriter(path)
    assert read(path) == [BEGAN]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"topic": "kv", "seq": 0}\n', r"is no \.kvtrace file"),
        (MAGIC[:-1] + b"\x09" + b"x" * 40, "version 9; known here is version 1"),
    ],
)
def test_what_is_no_trace_is_left_alone(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    for attempt in (lambda: read(path), lambda: TraceWriter(path)):
        with pytest.raises(TraceFileError, match=said):
            attempt()
    assert path.read_bytes() == content


def test_a_pipe_is_no_place_to_record_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceFileError, match="pipe: it is no regular file"):
        TraceWriter(tmp_path / "pipe")


@pytest.mark.parametrize("path", ["missing/a.kvtrace", ""])
def test_a_path_that_cannot_be_opened_is_named(path: str, tmp_path: Path) -> None:
    with pytest.raises(TraceFileError, match=str(tmp_path / path)):
        TraceWriter(tmp_path / path)
    with pytest.raises(TraceFileError, match=str(tmp_path / path)):
        read(tmp_path / path)


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from router.trace.chunk import TraceFileError
from router.trace.writer import TraceWriter
from router.trace.records import Began, FrameHeard, LaneNamed
import random

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
chance = random.Random(1)
writer = TraceWriter(Path(sys.argv[1]))
writer.write(Began(at=1.0, program="test", version="1", source="a test"))
writer.write(LaneNamed(lane=1, url="http://10.0.0.1:30000", dp_rank=0))
try:
    for seq in range(1000):
        payload = chance.randbytes(1_500)
        writer.write(FrameHeard(at=1.0, lane=1, replayed=False, topic=b"", seq=seq, payload=payload))
except TraceFileError as error:
    print(seq, error)
"""


def test_a_full_disk_costs_the_record_that_did_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "full.kvtrace"
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True)
    failed, said = done.stdout.split(" ", 1)
    assert said.startswith(f"cannot write {path} past byte {path.stat().st_size}: File too large")
    reader = TraceReader(path)
    records = list(reader)
    assert (len(records) - 2, reader.torn) == (int(failed), False)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([NAMED], "record 1 at byte 8: the first record is not a recorder's beginning"),
        ([BEGAN, frame(0)], "record 2 at byte [0-9]+: lane 1 has not been named"),
        ([BEGAN, NAMED, BEGAN, frame(0)], "record 4 at byte [0-9]+: lane 1 has not been named"),
    ],
)
def test_records_that_do_not_fit_together_are_named(records: Sequence[Record], said: str, tmp_path: Path) -> None:
    """What stands behind a reader takes every lane's number for one that it knows."""
    write(tmp_path / "a.kvtrace", records)
    with pytest.raises(TraceFileError, match=said):
        read(tmp_path / "a.kvtrace")
