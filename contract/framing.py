"""The frames that carry event batches, and the replay protocol beside them.

Live (PUB):       ``topic | seq | payload``, seq = 8 bytes big-endian, dense from 0 per publisher process.
Replay request:   a DEALER sends ``"" | start``; the ROUTER sees ``identity | "" | start``.
Replay reply:     one message per batch. Since vLLM 0.26 and SGLang 0.5.22 ``"" | topic | seq | payload``; before
                  them ``"" | seq | payload`` without the topic. Read from the end, both are the same message.
Replay end:       seq = eight 0xff bytes and an empty payload, in either shape.

Frames in, values out: no sockets, no msgpack.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

__all__ = [
    "END_SEQ",
    "Frame",
    "FramingError",
    "parse_live",
    "parse_replay_reply",
    "parse_replay_request",
    "pub_frames",
    "replay_end",
    "replay_reply",
    "replay_request",
]

SEQ_BYTES = 8
END_SEQ = b"\xff" * SEQ_BYTES
MAX_SEQ = 2**63 - 1


class FramingError(ValueError):
    """A peer sent frames that this protocol does not know."""


class Frame(msgspec.Struct, frozen=True):
    """One numbered batch as it travelled; ``payload`` is still msgpack."""

    topic: bytes
    seq: int
    payload: bytes


def pub_frames(frame: Frame) -> list[bytes]:
    """Frames for a PUB socket."""
    return [frame.topic, encode_seq(frame.seq), frame.payload]


def parse_live(frames: Sequence[bytes]) -> Frame:
    """A batch from a SUB socket.

    Raises:
        FramingError: not three frames, or a sequence number that is not eight bytes.
    """
    if len(frames) != 3:
        raise FramingError(f"a live batch has 3 frames, got {len(frames)}")
    topic, seq, payload = frames
    return Frame(topic, decode_seq(seq), payload)


def replay_request(start: int) -> list[bytes]:
    """Frames a DEALER sends to be given every batch with ``seq >= start``."""
    return [b"", encode_seq(start)]


def parse_replay_request(frames: Sequence[bytes]) -> tuple[bytes, int]:
    """``(identity, start)`` of a request as the ROUTER sees it.

    A start of any length is read big-endian, an empty one as 0, as vLLM 0.33.0 does.

    Raises:
        FramingError: not ``identity | "" | start``, or a start longer than eight bytes.
    """
    if len(frames) != 3 or frames[1]:
        raise FramingError(f"a replay request is identity, empty, start; got {len(frames)} frames")
    if len(frames[2]) > SEQ_BYTES:
        raise FramingError(f"a replay start has at most {SEQ_BYTES} bytes, got {len(frames[2])}")
    return frames[0], int.from_bytes(frames[2], "big")


def replay_reply(frame: Frame) -> list[bytes]:
    """Frames of one replayed batch behind the identity, in the four-frame shape of today's engines."""
    return [b"", frame.topic, encode_seq(frame.seq), frame.payload]


def replay_end() -> list[bytes]:
    """Frames that close a replay, behind the identity."""
    return [b"", b"", END_SEQ, b""]


def parse_replay_reply(frames: Sequence[bytes]) -> Frame | None:
    """One replayed batch as a DEALER sees it, or ``None`` for the end marker.

    Raises:
        FramingError: neither three nor four frames, a first frame that is not empty, or a bad sequence number.
    """
    if len(frames) not in (3, 4) or frames[0]:
        raise FramingError(f"a replay reply is empty, [topic,] seq, payload; got {len(frames)} frames")
    seq, payload = frames[-2:]
    if seq == END_SEQ:
        return None
    return Frame(frames[1] if len(frames) == 4 else b"", decode_seq(seq), payload)


def encode_seq(seq: int) -> bytes:
    """Sequence number as it stands on the wire."""
    return seq.to_bytes(SEQ_BYTES, "big")


def decode_seq(raw: bytes) -> int:
    """Sequence number from its frame; both engines count up from 0 and stay below 2**63."""
    if len(raw) != SEQ_BYTES:
        raise FramingError(f"a sequence number has {SEQ_BYTES} bytes, got {len(raw)}")
    seq = int.from_bytes(raw, "big")
    if seq > MAX_SEQ:
        raise FramingError(f"sequence number {seq} is above {MAX_SEQ}")
    return seq
