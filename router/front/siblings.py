"""The other workers of a router, asked over sockets in a folder that only their user can open.

``Siblings`` asks, ``InnerServer`` answers: with what this process alone knows, whoever asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

import aiohttp
from aiohttp import web

__all__ = ["InnerServer", "Page", "Siblings"]

ANSWER_SECONDS = 2.0
OK = 200
Page = Callable[[str], Awaitable[bytes | None]]
"""Makes an answer, from what the path has in place of ``{id}``; None: there is nothing of that name."""


def _socket(folder: Path, place: int) -> str:
    return str(folder / f"{place}.sock")


class Siblings:
    """A context. ``places`` are the other workers'; one that is being started again does not answer."""

    def __init__(self, folder: Path, *, own_place: int, workers: int) -> None:
        self.own_place = own_place
        self.places = [place for place in range(workers) if place != own_place]
        self._folder = folder
        self._sessions: dict[int, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        for place in self.places:
            connector = aiohttp.UnixConnector(path=_socket(self._folder, place))
            self._sessions[place] = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(session.close() for session in self._sessions.values()))

    async def ask(self, place: int, path: str) -> bytes | None:
        """What a sibling answers; None where it does not, or has nothing there."""
        try:
            async with self._sessions[place].get(f"http://worker{path}") as response:
                body = await response.read()
                return body if response.status == OK else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def ask_all(self, path: str) -> dict[int, bytes | None]:
        """What every sibling answers."""
        answers = await asyncio.gather(*(self.ask(place, path) for place in self.places))
        return dict(zip(self.places, answers, strict=True))


class InnerServer:
    """Answers siblings; a context."""

    def __init__(self, folder: Path, *, place: int, pages: dict[str, Page]) -> None:
        self._path = Path(_socket(folder, place))
        app = web.Application()
        app.router.add_routes([web.get(path, _answering(page)) for path, page in pages.items()])
        self._runner = web.AppRunner(app, access_log=None)

    async def __aenter__(self) -> Self:
        self._path.unlink(missing_ok=True)  # whoever was here before has died
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self._path)).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


def _answering(page: Page) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(http: web.Request) -> web.Response:
        body = await page(http.match_info.get("id", ""))
        return web.Response(status=404) if body is None else web.Response(body=body)

    return answer
