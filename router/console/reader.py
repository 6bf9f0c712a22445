"""Reads a router over HTTP: its ``/replicas``, and what it answers to a request."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec

from router.front.views import FleetView

__all__ = ["ReadError", "RouterReader", "reading"]

OK = 200
_ERROR_CHARS = 200


class ReadError(Exception):
    """An answer that is not what was asked for, in one line. ``status`` is its HTTP status, if it has one."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def reading(api_key: str) -> aiohttp.ClientSession:
    """A session for routers that ask their clients for a key (empty: they do not)."""
    return aiohttp.ClientSession(headers={"Authorization": f"Bearer {api_key}"} if api_key else None)


class RouterReader:
    """One router, over a shared session. ``seconds`` is the longest wait for an answer."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, seconds: float) -> None:
        self.url = url
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=seconds)

    async def fleet(self) -> FleetView:
        """Every replica as it stands.

        Raises:
            ReadError: nobody listens there, or it is no router.
        """
        raw = await self._ask("GET", "/replicas")
        try:
            return msgspec.json.decode(raw, type=FleetView)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ReadError(f"{self.url}/replicas is not that of a kvsteer router: {error}") from None

    async def ask(self, path: str, body: dict[str, Any], *, headers: dict[str, str]) -> bytes:
        """The answer to a POST.

        Raises:
            ReadError: it is none, or no success.
        """
        return await self._ask("POST", path, json=body, headers=headers)

    async def _ask(self, method: str, path: str, **more: Any) -> bytes:
        try:
            async with self._session.request(method, self.url + path, timeout=self._timeout, **more) as response:
                raw = await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ReadError(f"{self.url}{path}: {error or type(error).__name__}") from None
        if response.status != OK:
            said = raw[:_ERROR_CHARS].decode(errors="replace")
            raise ReadError(f"{self.url}{path} answers {response.status}: {said}", status=response.status)
        return raw
