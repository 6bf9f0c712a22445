"""``kvsteer-router trace convert IN OUT``: traces to and from frames in JSON lines and Mooncake-format workloads.

What comes out is written beside its place and put there when it is whole.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from router.trace.chunk import NAME, TraceFileError
from router.trace.frame_lines import RecordingError
from router.trace.from_lines import records_of_lines
from router.trace.lines import TraceError
from router.trace.new_file import new_file, write_trace
from router.trace.reader import TraceReader
from router.trace.records import Record
from router.trace.saying import complain_of_damage
from router.trace.to_frames import frame_lines
from router.trace.to_mooncake import MooncakeRows, row_line

__all__ = ["FRAMES", "KINDS", "KVTRACE", "MOONCAKE", "ConvertOptions", "run_convert"]

KVTRACE, FRAMES, MOONCAKE = "kvtrace", "frames", "mooncake"
KINDS = (KVTRACE, FRAMES, MOONCAKE)


class ConvertOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``kind`` is what to make. ``replica`` names whose frames to write, where several were recorded."""

    source: Path
    target: Path
    kind: str
    replica: str | None


def run_convert(options: ConvertOptions) -> int:
    """Convert; the exit status.

    Raises:
        TraceFileError: something cannot be read or written, there already is something where to write, or nothing is
            there to be written.
    """
    try:
        records = _records(options.source)
        _write(options, records)
    except (TraceError, RecordingError) as error:
        raise TraceFileError(str(error)) from None
    return complain_of_damage("trace convert", records) if isinstance(records, TraceReader) else 0


def _records(path: Path) -> Iterable[Record]:
    try:
        with path.open("rb") as file:
            is_trace = file.read(len(NAME)) == NAME
    except OSError as error:
        raise TraceFileError(f"{path}: {error.strerror}") from None
    return TraceReader(path) if is_trace else records_of_lines(path)


def _write(options: ConvertOptions, records: Iterable[Record]) -> None:
    if options.kind == KVTRACE:
        write_trace(records, options.target)
    elif options.kind == FRAMES:
        _write_lines(options, frame_lines(records, replica=options.replica), what="frame of an event stream")
    else:
        rows = MooncakeRows()
        _write_lines(options, map(row_line, rows.rows(records)), what="request whose prompt is known")
        if rows.left_out:
            print(f"{rows.left_out} requests are left out: nobody knows their prompts", file=sys.stderr)


def _write_lines(options: ConvertOptions, lines: Iterable[bytes], *, what: str) -> None:
    with new_file(options.target) as part, _open(part, packed=options.target.suffix == ".gz") as file:
        empty = True
        for line in lines:
            file.write(line)
            empty = False
        if empty:
            raise TraceFileError(f"{options.source} has no {what}")


@contextlib.contextmanager
def _open(path: Path, *, packed: bool) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """For its owner's eyes, as a trace is."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as plain:
        if not packed:
            yield plain
            return
        with gzip.GzipFile(fileobj=plain, mode="wb", mtime=0) as file:
            yield file
