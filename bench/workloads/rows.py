"""Rows of a recorded workload as values of one type; a row that is none is named by its file and line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from router.trace.lines import TraceError, read_lines

__all__ = ["read_rows"]

T = TypeVar("T")


def read_rows(path: Path, kind: type[T], *, skip: int = 0) -> Iterator[tuple[int, T]]:
    """Numbered rows in file order, without the first ``skip``; read as they are asked for.

    Raises:
        TraceError: the file cannot be read, or a line is no such row.
    """
    decoder = msgspec.json.Decoder(kind)
    for number, line in islice(read_lines(path), skip, None):
        try:
            row = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TraceError(f"{path}, line {number}: {error}") from None
        yield number, row
