"""What a ``.kvtrace`` says, record by record. Values only; times are seconds since the epoch.

Of a lane's stream every input is kept in order: frames, live or from a replay, and what else moves the stream on. So a
reader drives the same stream through the same states and needs no engine for it.

Of a request there are times, lengths and lanes, and its prompt as keys: block hashes in the index's own chain, at each
width that a lane was looked up at, and at a finest width that divides them. Token ids only where they were asked for.
"""

from __future__ import annotations

import enum
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

__all__ = [
    "Began",
    "FirstToken",
    "FrameHeard",
    "LaneNamed",
    "PrefixKeys",
    "Record",
    "Reminder",
    "ReplicaSeen",
    "Routed",
    "Served",
    "Skipped",
    "StreamJoined",
    "StreamLeft",
    "StreamTurned",
    "Turn",
    "decode_record",
    "encode_record",
    "pack_ids",
    "pack_keys",
]


class Began(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="began"):
    """A recorder starts: the first record of a file, and again for each recorder that goes on with it.

    Whatever streams were followed before are not any more, and lanes have no numbers yet. ``source`` says what is
    recorded, in words.
    """

    at: float
    program: str
    version: str
    source: str


class Skipped(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="skipped"):
    """Here ``size`` bytes of a file, from ``offset`` on, cannot be read: nobody knows what lanes went through.

    Readers make it up; only copies of what they read have it written down.
    """

    offset: int
    size: int


class ReplicaSeen(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="replica"):
    """A replica as a probe found it, where that is news. ``block_size`` is the advertised block width."""

    at: float
    url: str
    state: str
    engine: str | None
    version: str | None
    models: Sequence[str]
    dp_size: int
    block_size: int | None
    no_events: str | None
    trouble: str | None


class LaneNamed(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="lane"):
    """The number by which the records that follow mean this lane."""

    lane: int
    url: str
    dp_rank: int


class StreamJoined(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="joined"):
    """A lane's stream is followed from its beginning; nothing is held. ``block_size`` is the advertised width."""

    at: float
    lane: int
    endpoint: str
    topic: str
    can_replay: bool
    block_size: int | None


class Reminder(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="reminder"):
    """What a reader must know who could not read what is before: nothing else, so that other readers pass over it.

    ``began`` is the time of the recorder's `Began`, ``lanes`` all that it has named, ``joined`` the streams it follows.
    """

    began: float
    lanes: Sequence[LaneNamed]
    joined: Sequence[StreamJoined]


class StreamLeft(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="left"):
    """Nobody listens to the lane any more, and nothing is held of it."""

    at: float
    lane: int


class FrameHeard(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="frame"):
    """One numbered batch as it travelled, when it was taken in. ``replayed``: it answers a replay request."""

    at: float
    lane: int
    replayed: bool
    topic: bytes
    seq: int
    payload: bytes


class Turn(enum.StrEnum):
    """What moves a stream on beside frames; the names of its methods."""

    CONNECTED = "connected"
    CHECK = "check"
    REPLAY_AGAIN = "replay_again"
    REPLAY_ENDED = "replay_ended"
    REPLAY_FAILED = "replay_failed"


class StreamTurned(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="turned"):
    """Something other than a frame happened to a stream; ``why`` where a replay failed."""

    at: float
    lane: int
    turn: Turn
    why: str = ""


class PrefixKeys(msgspec.Struct, frozen=True, array_like=True):
    """Keys of a prompt's full blocks of ``width`` tokens (pairs of neighbours where ``pairs`` is set), in order.

    ``packed`` has eight bytes a key, little-endian. One more may follow for the rest that fills no block: workloads
    that name blocks by ids have one.
    """

    width: int
    pairs: bool
    packed: bytes

    @property
    def keys(self) -> array[int]:
        """The keys as numbers."""
        return _unpacked("Q", self.packed)


class Routed(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="routed"):
    """A lane was chosen for a request, or for another attempt at it.

    ``lane`` is None where nobody chose (a workload). ``lanes`` might have served it. ``predicted`` tokens were held
    there, ``pending`` more on their way. ``namespaced``: an adapter or a salt belongs to the prompt. Its last token,
    which an engine always computes, is in no key.
    """

    at: float
    request: int
    lane: int | None
    lanes: Sequence[int]
    model: str | None
    prompt_tokens: int
    prompts: int
    stream: bool
    predicted: int
    pending: int
    namespaced: bool
    prefixes: Sequence[PrefixKeys]
    packed_ids: bytes | None = None

    @property
    def token_ids(self) -> Sequence[int] | None:
        """The prompt's ids without the last one; None where they were not recorded."""
        return None if self.packed_ids is None else _unpacked("I", self.packed_ids)


class FirstToken(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="first"):
    """An attempt's answer begins, or is there at once: its prompt has been computed."""

    at: float
    request: int


class Served(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="served"):
    """An attempt is over. ``first_after`` seconds passed until its first token; None: there was none.

    The rest is the engine's account, None where it gave none. ``reported`` are prompt tokens that it had cached.
    """

    at: float
    request: int
    first_after: float | None
    prompt_tokens: int | None
    reported: int | None
    output_tokens: int | None


Record = (
    Began
    | Reminder
    | Skipped
    | ReplicaSeen
    | LaneNamed
    | StreamJoined
    | StreamLeft
    | FrameHeard
    | StreamTurned
    | Routed
    | FirstToken
    | Served
)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """A record as msgpack."""
    return _ENCODER.encode(record)


def decode_record(raw: bytes) -> Record:
    """A record from its bytes.

    Raises:
        msgspec.DecodeError: it is none that this version knows.
    """
    return _DECODER.decode(raw)


def pack_keys(keys: Iterable[int]) -> bytes:
    """Keys as ``PrefixKeys`` holds them."""
    return _packed("Q", keys)


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as ``Routed`` holds them.

    Raises:
        OverflowError: an id does not fit 32 bits.
    """
    return _packed("I", ids)


def _packed(code: Literal["I", "Q"], numbers: Iterable[int]) -> bytes:
    packed = array(code, numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpacked(code: Literal["I", "Q"], packed: bytes) -> array[int]:
    numbers = array(code)
    numbers.frombytes(packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
