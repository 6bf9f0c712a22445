"""What parent and workers tell each other: JSON, a line each, over the workers' standard streams."""

from __future__ import annotations

import msgspec

from router.config import RouterConfig

__all__ = ["FleetIs", "FromParent", "FromWorker", "Hello", "Listening", "Wanted", "decode_line", "encode_line"]

MAX_LINE_BYTES = 16 * 1024 * 1024


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first thing a worker hears. ``config`` is its own: it has another seed than its siblings', and a port.

    ``sockets`` is a folder where each worker listens for its siblings. ``rejoins``: it stands in for one that died, so
    the others serve until it can.
    """

    config: RouterConfig
    place: int
    sockets: str
    rejoins: bool


class FleetIs(msgspec.Struct, frozen=True, tag="fleet"):
    """The replicas that every worker has now, by URL."""

    urls: tuple[str, ...]


class Listening(msgspec.Struct, frozen=True, tag="listening"):
    """A worker takes connections at ``url``."""

    url: str


class Wanted(msgspec.Struct, frozen=True, tag="wanted"):
    """Somebody asked a worker to take a replica in, or out: the parent tells everybody."""

    url: str
    present: bool


FromParent = Hello | FleetIs
FromWorker = Listening | Wanted
_DECODER: msgspec.json.Decoder[FromParent | FromWorker] = msgspec.json.Decoder(FromParent | FromWorker)


def encode_line(message: FromParent | FromWorker) -> bytes:
    """A message as it is sent."""
    return msgspec.json.encode(message) + b"\n"


def decode_line(line: bytes) -> FromParent | FromWorker:
    """A message as it came.

    Raises:
        ValueError: it is none.
    """
    return _DECODER.decode(line)
