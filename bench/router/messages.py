"""HTTP/1.1 messages out of bytes, requests and answers alike, by a length or in chunks. Pure.

For loopback partners that are known to behave: heads are not interpreted beyond how long their body is, so that
client and workers of a bench cost little beside the routers between them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Message", "MessageError", "MessageReader"]

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
_BLANK, _LINE = b"\r\n\r\n", b"\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)


class MessageError(ValueError):
    """Bytes that are no message, or one beyond the bounds."""


class Message(NamedTuple):
    """``head`` is the start line and the fields, as they came; ``body`` has no chunk sizes in it."""

    head: bytes
    body: bytes


class MessageReader:
    """One direction of one connection."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._head: bytes | None = None
        self._length: int | None = None
        self._body = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Take in what arrived; the messages that are complete now.

        Raises:
            MessageError: the reader is of no use afterwards.
        """
        self._bytes += data
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> Message | None:
        if self._head is None and not self._take_head():
            return None
        body = self._by_length(self._length) if self._length is not None else self._by_chunks()
        if body is None:
            return None
        assert self._head is not None, "a body follows a head"
        message, self._head = Message(self._head, body), None
        return message

    def _take_head(self) -> bool:
        end = self._bytes.find(_BLANK)
        if end < 0:
            if len(self._bytes) > MAX_HEAD_BYTES:
                raise MessageError(f"no head ends within {MAX_HEAD_BYTES} bytes")
            return False
        self._head = bytes(self._take(end + len(_BLANK)))
        length = _LENGTH.search(self._head)
        self._length = int(length[1]) if length else None if _CHUNKED.search(self._head) else 0
        return True

    def _by_length(self, length: int) -> bytes | None:
        if length > MAX_BODY_BYTES:
            raise MessageError(f"a body of {length} bytes is above {MAX_BODY_BYTES}")
        return bytes(self._take(length)) if len(self._bytes) >= length else None

    def _by_chunks(self) -> bytes | None:
        while (end := self._bytes.find(_LINE)) >= 0:
            size = _chunk_size(self._bytes[:end])
            if len(self._body) + size > MAX_BODY_BYTES:
                raise MessageError(f"a body in chunks is above {MAX_BODY_BYTES} bytes")
            begin, after = end + len(_LINE), end + len(_LINE) + size + len(_LINE)
            if len(self._bytes) < after:
                return None
            self._body += self._take(after)[begin : begin + size]
            if size == 0:
                body, self._body = bytes(self._body), bytearray()
                return body
        return None

    def _take(self, size: int) -> bytearray:
        taken = self._bytes[:size]
        del self._bytes[:size]
        return taken


def _chunk_size(line: bytearray) -> int:
    try:
        return int(line.split(b";")[0], 16)
    except ValueError:
        raise MessageError(f"{bytes(line[:20])!r} is no chunk size") from None
