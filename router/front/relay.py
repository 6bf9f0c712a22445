"""Sends a request to the chosen engine, and to a second one where that may bring an answer.

Until the client has been given a byte, an engine that breaks off, is full (429, 503) or fails (other 5xx) costs one
more try on one other replica; the second answer is passed on, whatever it is. An engine that cannot be connected to, or
that does not answer a greeting before the second try, was asked nothing, and is no try. After the first byte nothing is
tried again. An engine that is silent for too long is a 504 and not replaced: it may still be computing. A client that
leaves takes its request with it: the handler is cancelled, which closes the engine's connection.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from http import HTTPStatus

import aiohttp

from router.choice.chooser import Chooser
from router.fleet.breaker import counts_as_failure
from router.fleet.fleet import Fleet
from router.fleet.identity import Engine
from router.fleet.lane import Lane
from router.fleet.prober import tell_failure
from router.fleet.replica import Replica
from router.front.answers import Answers
from router.front.client import Client
from router.front.engine_client import EngineClient
from router.front.errors import ApiError
from router.front.exchange import Exchange
from router.front.headers import RANK_HEADER, ToEngine
from router.front.metrics import RequestMetrics
from router.front.plan import Plan
from router.front.receipts import Receipt
from router.front.retry import RetryBudget, may_be_asked_elsewhere
from router.front.route import Route
from router.front.upstream import upstream_body

__all__ = ["Relay"]

_LOG = logging.getLogger(__name__)
_TAKE_IDS = {
    Route.COMPLETIONS: (Engine.KVSTEER, Engine.SGLANG, Engine.VLLM),
    Route.GENERATE: (Engine.KVSTEER, Engine.SGLANG),
    Route.CHAT: (),
}
"""Engines known to take token ids where a text may stand."""
MAX_TRIES = 2
GREETING_PATH = "/v1/models"
GREETING_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_NOT_HANDED_OVER = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class _LostError(Exception):
    """An attempt that brought the client nothing. ``handed_over``: the engine may have seen the request."""

    def __init__(self, message: str, *, handed_over: bool) -> None:
        super().__init__(message)
        self.handed_over = handed_over


class Relay:
    """One router's relay. Its sessions' timeouts hold until an answer begins, ``idle_timeout`` from there on.

    Second tries go over ``fresh``, which keeps no connections: when several engines die at once, a kept connection to a
    dead one may look alive for a moment and swallow the request, where a new one is refused.
    ``expose_replica`` names the engine in the answer's headers.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        fresh: aiohttp.ClientSession,
        *,
        fleet: Fleet,
        chooser: Chooser,
        metrics: RequestMetrics,
        to_engine: ToEngine,
        idle_timeout: float,
        expose_replica: bool,
    ) -> None:
        self._engines = EngineClient(session, shortest_silence=idle_timeout)
        self._fresh = fresh
        self._fresh_engines = EngineClient(fresh, shortest_silence=idle_timeout)
        self._fleet = fleet
        self._chooser = chooser
        self._metrics = metrics
        self._to_engine = to_engine
        self._answers = Answers(fleet=fleet, metrics=metrics, idle_timeout=idle_timeout, expose_replica=expose_replica)
        self._budget = RetryBudget()

    async def serve(self, client: Client, plan: Plan, receipt: Receipt) -> int:
        """Answer a request; the status of the answer.

        Raises:
            ApiError: 502 where two engines were lost, or the only one was; 504 where one stayed silent.
        """
        self._budget.earn()
        lanes, tries_left = plan.lanes, MAX_TRIES
        while True:
            try:
                return await self._attempt(client, plan, lanes, receipt)
            except _LostError as lost:
                tries_left -= lost.handed_over
                lanes = self._others(plan, receipt)
                if not tries_left or not lanes:
                    raise ApiError(str(lost), status=HTTPStatus.BAD_GATEWAY, code="engine_lost") from None
                receipt.failures.append(str(lost))
                self._metrics.retried()

    def _others(self, plan: Plan, receipt: Receipt) -> list[Lane]:
        """Lanes of replicas that have not been asked."""
        asked = {decision.chosen.lane.url for decision in receipt.decisions}
        now = time.monotonic()
        return [lane for lane in plan.lanes if lane.url not in asked and self._fleet.admits(lane, now=now)]

    async def _attempt(self, client: Client, plan: Plan, lanes: Sequence[Lane], receipt: Receipt) -> int:
        now = time.monotonic()
        decision = self._chooser.choose(
            plan.prompt, prompt_tokens=plan.prompt_tokens, lanes=lanes, now=now, session=plan.session
        )
        receipt.chose(decision)
        with Exchange(plan, decision, now=now, metrics=self._metrics, receipt=receipt) as exchange:
            return await self._forward(client, plan, exchange, receipt)

    async def _forward(self, client: Client, plan: Plan, exchange: Exchange, receipt: Receipt) -> int:
        lane, request = exchange.lane, plan.request
        replica = self._fleet.replica(lane.url)
        replica.breaker.sent(now=time.monotonic())
        rank = lane.dp_rank if len(replica.lanes) > 1 else None
        headers = self._to_engine(client.headers)
        if rank is not None and request.route is not Route.GENERATE:
            headers = [
                *(field for field in headers if field[0].lower() != RANK_HEADER.lower()),
                (RANK_HEADER, str(rank)),
            ]
        body = upstream_body(request, dp_rank=rank, tokens=self._ids_for(replica, plan))
        engines = self._engines
        if len(receipt.decisions) > 1:
            engines = self._fresh_engines
            await self._greet(replica)
        try:
            async with engines.post(lane.url, client.path, body=body, headers=headers) as upstream:
                self._judge(upstream.status, replica)
                if self._asks_elsewhere(upstream.status, plan, receipt):
                    raise _LostError(f"{lane.url} answered {upstream.status}", handed_over=True)
                return await self._answers.give(client, upstream, exchange)
        except aiohttp.ClientError as error:
            raise self._loss(error, replica) from error

    async def _greet(self, replica: Replica) -> None:
        """Let an engine show that it is there: any answer will do.

        Engines that are killed together still take connections for a moment, and would swallow the last try.
        """
        try:
            async with self._fresh.get(replica.url + GREETING_PATH, allow_redirects=False, timeout=GREETING_TIMEOUT):
                return
        except (aiohttp.ClientError, TimeoutError) as error:
            replica.breaker.failed(now=time.monotonic())
            self._fleet.report(replica.url, tell_failure(error))
            message = f"{replica.url}: {error or type(error).__name__}"
            raise _LostError(message, handed_over=False) from error

    def _ids_for(self, replica: Replica, plan: Plan) -> Sequence[int] | None:
        """A text's token ids, where the engine takes them."""
        engine = None if replica.identity is None else replica.identity.engine
        return plan.text_ids if engine in _TAKE_IDS[plan.request.route] else None

    def _judge(self, status: int, replica: Replica) -> None:
        if counts_as_failure(status):
            replica.breaker.failed(now=time.monotonic())
        else:
            replica.breaker.succeeded()

    def _asks_elsewhere(self, status: int, plan: Plan, receipt: Receipt) -> bool:
        first = len(receipt.decisions) == 1
        return first and may_be_asked_elsewhere(status) and bool(self._others(plan, receipt)) and self._budget.spend()

    def _loss(self, error: aiohttp.ClientError, replica: Replica) -> ApiError | _LostError:
        """Tell the fleet of an engine that was lost before the client was given a byte; what to say to the caller."""
        url = replica.url
        replica.breaker.failed(now=time.monotonic())
        if isinstance(error, aiohttp.SocketTimeoutError):
            message = f"{url} accepted the request and then sent nothing"
            return ApiError(message, status=HTTPStatus.GATEWAY_TIMEOUT, code="engine_timeout")
        self._fleet.report(url, tell_failure(error))
        handed_over = not isinstance(error, _NOT_HANDED_OVER)
        return _LostError(f"{url}: {error or type(error).__name__}", handed_over=handed_over)
