"""One request and whoever waits for its answer, as they are seen by those who answer. Knows not what carries them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from router.front.errors import ApiError
from router.front.headers import Headers

__all__ = ["Client", "refuse"]


class Client(Protocol):
    """Gets one answer: a whole one, or one that begins and ends. ``path`` has the query too.

    Whoever answers learns from a ConnectionAbortedError that the client is gone.
    """

    headers: Mapping[str, str]
    path: str

    async def body(self) -> bytes:
        """The request's body; asked for once.

        Raises:
            ApiError: it is too large, cannot be read or does not come in time.
        """
        ...

    async def answer(self, status: int, headers: Headers, body: bytes | bytearray) -> None:
        """Give the whole answer."""
        ...

    async def begin(self, status: int, headers: Headers) -> None:
        """Begin an answer of a length that is not known; its head may leave together with what follows."""
        ...

    async def write(self, chunk: bytes | bytearray) -> None:
        """Send a part of it, as fast as the client reads."""
        ...

    async def end(self, chunk: bytes) -> None:
        """Send the last part, and that it was the last."""
        ...

    def cut_off(self) -> None:
        """End an answer that has begun in the one way that shows that this is not its end."""
        ...


async def refuse(client: Client, error: ApiError, headers: Headers) -> None:
    """Answer with a refusal; ``headers`` go with its own."""
    own = [("Content-Type", "application/json"), *(error.headers or {}).items()]
    await client.answer(error.status, [*own, *headers], error.encode())
