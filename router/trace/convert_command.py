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
from router.trace.reader import TraceReader
from router.trace.records import Record
from router.trace.to_frames import frame_lines
from router.trace.to_mooncake import MooncakeRows, row_line
from router.trace.writer import TraceWriter

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
        TraceFileError: something cannot be read or written, or there already is something where to write.
    """
    if options.target.exists():
        raise TraceFileError(f"{options.target} exists already")
    records = _records(options.source)
    part = options.target.with_name(options.target.name + ".part")
    try:
        _write(options, records, part)
        os.replace(part, options.target)
    except (TraceError, RecordingError) as error:
        raise TraceFileError(str(error)) from None
    except OSError as error:
        raise TraceFileError(f"cannot write {options.target}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return 0


def _records(path: Path) -> Iterable[Record]:
    try:
        with path.open("rb") as file:
            is_trace = file.read(len(NAME)) == NAME
        return TraceReader(path) if is_trace else records_of_lines(path)
    except TraceError as error:
        raise TraceFileError(str(error)) from None
    except OSError as error:
        raise TraceFileError(f"{path}: {error.strerror}") from None


def _write(options: ConvertOptions, records: Iterable[Record], part: Path) -> None:
    match options.kind:
        case "kvtrace":
            with TraceWriter(part) as writer:
                for record in records:
                    writer.write(record)
        case "frames":
            _write_lines(frame_lines(records, replica=options.replica), part, packed=_packed(options.target))
        case _:
            rows = MooncakeRows()
            _write_lines(map(row_line, rows.rows(records)), part, packed=_packed(options.target))
            if rows.left_out:
                print(f"{rows.left_out} requests are left out: nobody knows their prompts", file=sys.stderr)


def _packed(path: Path) -> bool:
    return path.suffix == ".gz"


def _write_lines(lines: Iterable[bytes], path: Path, *, packed: bool) -> None:
    with _open(path, packed=packed) as file:
        file.writelines(lines)


@contextlib.contextmanager
def _open(path: Path, *, packed: bool) -> Iterator[IO[bytes] | gzip.GzipFile]:
    with path.open("wb") as plain:
        if not packed:
            yield plain
            return
        with gzip.GzipFile(fileobj=plain, mode="wb", mtime=0) as file:
            yield file
