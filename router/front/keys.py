"""Who may ask: API keys of clients, and the admin key for changes to the fleet.

With client keys, everything but liveness, readiness and metrics needs one (or the admin key). Changes need the admin
key; without one they are taken only by a router that listens on loopback and asks nobody for keys, and never from a
browser.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.front.errors import ApiError

__all__ = ["Keys"]

_OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
_CHALLENGE = {"WWW-Authenticate": "Bearer"}


class Keys:
    """``loopback``: the router can be reached from this host only."""

    def __init__(self, *, clients: Iterable[str], admin: str | None, loopback: bool) -> None:
        self._admin = None if admin is None else admin.encode()
        self._clients = [key.encode() for key in clients]
        self._free_changes = loopback and admin is None and not self._clients

    def middlewares(self) -> list[Middleware]:
        """What must stand before every handler; nothing where clients need no key."""
        return [self._client_middleware] if self._clients else []

    def require_admin(self, http: web.Request) -> None:
        """Let changes through.

        Raises:
            ApiError: 401 without the admin key, 403 where the router has none.
        """
        if self._free_changes and "Origin" not in http.headers:  # no web page on this host may reach in
            return
        if self._admin is None:
            message = "changes need an admin key, and this router was started without one"
            raise ApiError(message, status=HTTPStatus.FORBIDDEN, code="changes_not_allowed")
        if not _same(_bearer(http.headers), self._admin):
            raise _unauthorized("this needs the admin key")

    def require_client(self, headers: Mapping[str, str]) -> None:
        """Let a client through.

        Raises:
            ApiError: 401, it needs a key and sent none that is known.
        """
        if self._clients and not self._is_known(_bearer(headers)):
            raise _unauthorized("no valid API key: send one as Authorization: Bearer KEY")

    @web.middleware
    async def _client_middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in _OPEN_PATHS:
            self.require_client(request.headers)
        return await handler(request)

    def _is_known(self, given: bytes | None) -> bool:
        keys = self._clients if self._admin is None else [*self._clients, self._admin]
        return sum(_same(given, key) for key in keys) > 0


def _bearer(headers: Mapping[str, str]) -> bytes | None:
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    return key.strip().encode(errors="surrogateescape") if scheme.lower() == "bearer" else None


def _same(given: bytes | None, key: bytes) -> bool:
    """Compared in constant time: how long it takes tells nothing of the key."""
    return given is not None and hmac.compare_digest(given, key)


def _unauthorized(message: str) -> ApiError:
    return ApiError(message, status=HTTPStatus.UNAUTHORIZED, code="invalid_api_key", headers=_CHALLENGE)
