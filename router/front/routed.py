"""A routed request as a whole: admitted, read, planned, relayed, counted, and its receipt written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web

from router.front.admission import Admission
from router.front.errors import ApiError
from router.front.metrics import RequestMetrics
from router.front.plan import Planner
from router.front.reader import RequestReader
from router.front.receipts import Receipt, Receipts
from router.front.relay import Relay
from router.front.route import Route
from router.front.wishes import WishReader

__all__ = ["Routed"]

FAILED = HTTPStatus.INTERNAL_SERVER_ERROR.value
CLIENT_LEFT = 499
"""Counted, never sent: nginx's number for a client that did not wait."""


class Routed:
    """Makes the handlers of the routed endpoints."""

    def __init__(
        self,
        *,
        admission: Admission,
        reader: RequestReader,
        wishes: WishReader,
        planner: Planner,
        relay: Relay,
        receipts: Receipts,
        metrics: RequestMetrics,
    ) -> None:
        self._admission = admission
        self._reader = reader
        self._wishes = wishes
        self._planner = planner
        self._relay = relay
        self._receipts = receipts
        self._metrics = metrics

    def handler(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """The handler of one endpoint."""
        path = route.value

        async def handle(http: web.Request) -> web.StreamResponse:
            receipt = self._receipts.open(http, route=path)
            status = FAILED
            try:
                with self._admission:
                    response = await self._serve(http, route, receipt)
                status = response.status
                return response
            except ApiError as error:
                status = error.status
                receipt.refused(error)
                raise
            except (asyncio.CancelledError, ConnectionError):
                status = CLIENT_LEFT
                raise
            finally:
                receipt.ended(status=status)
                self._metrics.answered(route=path, status=status)

        return handle

    async def _serve(self, http: web.Request, route: Route, receipt: Receipt) -> web.StreamResponse:
        request = await self._reader.read(http, route, ids_below=self._planner.likely_vocabulary)
        plan = await self._planner.plan(request, self._wishes.read(http.headers, request))
        receipt.planned(plan)
        return await self._relay.serve(http, plan, receipt)
