"""From a request on the wire to a parsed one: its body, read within the limits, and the rank in its header."""

from __future__ import annotations

from aiohttp import web

from router.front.body import BodyReader
from router.front.client import Client
from router.front.headers import RANK_HEADER
from router.front.request import RoutedRequest, parse_any, parse_request
from router.front.route import Route

__all__ = ["RequestReader"]


class RequestReader:
    """``max_ids``: most token ids in one request."""

    def __init__(self, bodies: BodyReader, *, max_ids: int) -> None:
        self._bodies = bodies
        self._max_ids = max_ids

    async def read(self, client: Client, route: Route, *, ids_below: int) -> RoutedRequest:
        """The request of a routed endpoint; ``ids_below`` is a guess at the vocabulary's size.

        Raises:
            ApiError: it cannot be read, or makes no sense.
        """
        body = await client.body()
        pinned = client.headers.get(RANK_HEADER)
        return parse_request(route, body, max_ids=self._max_ids, pinned=pinned, ids_below=ids_below)

    async def read_any(self, http: web.Request) -> RoutedRequest:
        """A request whose body shows what it is.

        Raises:
            ApiError: it cannot be read, or makes no sense.
        """
        body = await self._bodies.read(http)
        return parse_any(body, max_ids=self._max_ids, pinned=http.headers.get(RANK_HEADER))
