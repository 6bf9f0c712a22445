"""Lines of a recorded workload, out of a plain file or a gzip one."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

__all__ = ["TraceError", "read_lines"]

GZIP_MAGIC = b"\x1f\x8b"


class TraceError(ValueError):
    """A recording that cannot be read; the message names the file and, where there is one, the line."""


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines, read as they are asked for; blank ones are passed over.

    Raises:
        TraceError: the file cannot be read.
    """
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                if not line.isspace():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        place = f"{path}, after line {number}" if number else str(path)
        raise TraceError(f"{place}: {getattr(error, 'strerror', None) or error}") from None


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    with path.open("rb") as file:
        packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    return gzip.open(path, "rb") if packed else path.open("rb")
