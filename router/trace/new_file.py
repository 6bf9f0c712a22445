"""A file that is made whole or not at all: written beside its place, and put there when it is complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from router.trace.chunk import TraceFileError
from router.trace.records import Record
from router.trace.writer import TraceWriter

__all__ = ["new_file", "write_trace"]


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Where to write what will stand at ``target`` in the end.

    Raises:
        TraceFileError: there already is something, or it cannot be written.
    """
    if target.exists():
        raise TraceFileError(f"{target} exists already")
    part = target.with_name(target.name + ".part")
    try:
        part.unlink(missing_ok=True)  # of one that was killed
        yield part
        os.replace(part, target)
    except OSError as error:
        raise TraceFileError(f"cannot write {target}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def write_trace(records: Iterable[Record], target: Path) -> None:
    """A new trace of these records.

    Raises:
        TraceFileError: as `new_file`, or there are no records.
    """
    with new_file(target) as part, TraceWriter(part, called=target) as writer:
        for record in records:
            writer.write(record)
        if not writer.records:
            raise TraceFileError("there is no record to write")
