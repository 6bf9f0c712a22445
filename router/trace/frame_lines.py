"""Recorded frames as JSON lines, ``{"topic", "seq", "payload_b64"}``, one PUB message each; other fields are ignored.

Such a file says nothing of lanes: they are told apart by the data-parallel rank inside each batch.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from contract.events import EventDecodeError, decode_batch
from contract.framing import MAX_SEQ, Frame
from router.trace.chunk import NAME

__all__ = ["Ranks", "RecordingError", "frame_line", "parse_frame", "read_recording"]


class RecordingError(ValueError):
    """A recording that cannot be read; the message names the file and the line."""


class _Line(msgspec.Struct, kw_only=True):
    topic: str = ""
    seq: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)]
    payload_b64: str


def read_recording(path: Path) -> Iterator[Frame]:
    """The frames of a recording, in the order of the file.

    Raises:
        RecordingError: the file cannot be read, or a line is no recorded frame.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1 and line.startswith(NAME):
                    raise RecordingError(f"{path} is a .kvtrace, which `kvsteer-router trace replay` reads")
                if line.strip():
                    yield parse_frame(line, where=f"{path}:{number}")
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror}") from None


def parse_frame(line: bytes, *, where: str) -> Frame:
    """The frame in a line.

    Raises:
        RecordingError: it is no recorded frame.
    """
    try:
        fields = msgspec.json.decode(line, type=_Line)
        payload = base64.b64decode(fields.payload_b64, validate=True)
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError) as error:
        raise RecordingError(f"{where}: not a recorded frame: {error}") from None
    return Frame(fields.topic.encode(), fields.seq, payload)


def frame_line(frame: Frame) -> bytes:
    """A frame as a line."""
    topic = frame.topic.decode(errors="replace")
    payload = base64.b64encode(frame.payload).decode()
    return msgspec.json.encode(_Line(topic=topic, seq=frame.seq, payload_b64=payload)) + b"\n"


class Ranks:
    """Tells frames of several lanes apart."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._latest = 0

    def of(self, frame: Frame) -> int:
        """The lane of the next frame: by its batch; else the only one that waits for its number, or the one before."""
        self._latest = rank = self._find(frame)
        self._next[rank] = frame.seq + 1
        return rank

    def _find(self, frame: Frame) -> int:
        try:
            return decode_batch(frame.payload).dp_rank or 0
        except EventDecodeError:
            waiting = [rank for rank, seq in self._next.items() if seq == frame.seq]
            return waiting[0] if len(waiting) == 1 else self._latest
