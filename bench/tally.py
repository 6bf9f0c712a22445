"""What came back from a run, request by request, seen from the client's side."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bench.client import BenchClient, Reply, RequestError

__all__ = ["Ask", "Asked", "Tally"]


class Asked(msgspec.Struct, frozen=True):
    """A request as it was sent."""

    path: str
    body: bytes


class Tally:
    """Replies and failures of one run, and the last request of more than a block that each replica answered.

    ``width`` is a block's, in tokens: what is shorter can never be found again, so repeating it proves nothing.
    """

    def __init__(self, *, width: int = 0) -> None:
        self.replies: list[Reply] = []
        self.failures: list[str] = []
        self.last_asked: dict[str, Asked] = {}
        self.late_seconds = 0.0
        self._width = width

    def add(self, asked: Asked, reply: Reply) -> None:
        """Enter a finished answer."""
        self.replies.append(reply)
        if reply.replica is not None and reply.prompt_tokens > self._width:
            self.last_asked[reply.replica] = asked

    def of(self, replica: str) -> list[Reply]:
        """The answers of one replica."""
        return [reply for reply in self.replies if reply.replica == replica]

    def note_late(self, seconds: float) -> None:
        """Remember by how much a request left after its time; the worst is kept."""
        self.late_seconds = max(self.late_seconds, seconds)


class Ask:
    """Asks through one client and enters what comes back; a failure is entered too, and is ``None`` to the caller."""

    def __init__(self, client: BenchClient, tally: Tally, on_done: Callable[[], None]) -> None:
        self._client = client
        self.tally = tally
        self._on_done = on_done

    async def __call__(self, path: str, body: bytes) -> Reply | None:
        """Send one request and wait for the end of its answer."""
        try:
            reply = await self._client.ask(path, body)
        except RequestError as error:
            self.tally.failures.append(str(error))
            return None
        else:
            self.tally.add(Asked(path, body), reply)
            return reply
        finally:
            self._on_done()
