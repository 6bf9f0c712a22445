"""A routed request as a whole: admitted, read, planned, relayed, counted, and its receipt written."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

from program.refusals import internal_error
from router.front.admission import Admission
from router.front.client import Client, refuse
from router.front.errors import ApiError
from router.front.headers import CLIENT_ID_HEADER
from router.front.metrics import RequestMetrics
from router.front.plan import Planner
from router.front.reader import RequestReader
from router.front.receipts import Receipt, Receipts
from router.front.relay import Relay
from router.front.route import Route
from router.front.wishes import WishReader

__all__ = ["Routed"]

_LOG = logging.getLogger("router")
FAILED = HTTPStatus.INTERNAL_SERVER_ERROR.value
CLIENT_LEFT = 499
"""Counted, never sent: nginx's number for a client that did not wait."""


class Routed:
    """Serves the routed endpoints, whatever carries their requests."""

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

    async def serve(self, client: Client, route: Route) -> None:
        """Answer a request to one of the routed endpoints. The blanket except is its top level.

        Raises:
            ConnectionError: the client is gone.
        """
        receipt = self._receipts.open(client.headers.get(CLIENT_ID_HEADER), route=route.value)
        status = FAILED
        try:
            with self._admission:
                status = await self._serve(client, route, receipt)
        except ApiError as error:
            status = await self._refuse(client, error, receipt)
        except (asyncio.CancelledError, ConnectionError):
            status = CLIENT_LEFT
            raise
        except Exception:
            _LOG.exception("POST %s failed", route.value)
            status = await self._refuse(client, internal_error("router"), receipt)
        finally:
            receipt.ended(status=status)
            self._metrics.answered(route=route.value, status=status)

    async def _serve(self, client: Client, route: Route, receipt: Receipt) -> int:
        request = await self._reader.read(client, route, ids_below=self._planner.likely_vocabulary)
        plan = await self._planner.plan(request, self._wishes.read(client.headers, request))
        receipt.planned(plan)
        return await self._relay.serve(client, plan, receipt)

    async def _refuse(self, client: Client, error: ApiError, receipt: Receipt) -> int:
        receipt.refused(error)
        await refuse(client, error, receipt.answered([]))
        return error.status
