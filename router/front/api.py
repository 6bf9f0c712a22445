"""The router's routes, and nothing else: what each does is elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry

from router.choice.chooser import Chooser
from router.fleet.fleet import Fleet
from router.front.errors import ApiError, in_openai_shape, unavailable
from router.front.headers import RANK_HEADER, for_client, for_engine
from router.front.metrics import RequestMetrics, exposition
from router.front.plan import Planner
from router.front.relay import Relay
from router.front.request import Route, named_model, parse_any, parse_request, payload
from router.front.views import explanation, fleet_view, model_list
from router.intake.index import BlockIndex
from router.proof.diagnosis import Diagnosis
from router.replay import lane_record

__all__ = ["Api"]

_JSON = "application/json"
CLIENT_LEFT = 499
"""Counted, never sent: nginx's number for a client that did not wait."""


class Api:
    """One router's HTTP face. ``draining`` is set when it is about to leave: ``/ready`` then says so."""

    def __init__(
        self,
        *,
        session: aiohttp.ClientSession,
        fleet: Fleet,
        index: BlockIndex,
        diagnosis: Diagnosis,
        chooser: Chooser,
        planner: Planner,
        relay: Relay,
        metrics: RequestMetrics,
        registry: CollectorRegistry,
        max_body_bytes: int,
        body_timeout: float,
    ) -> None:
        self.draining = False
        self._session = session
        self._fleet = fleet
        self._index = index
        self._diagnosis = diagnosis
        self._chooser = chooser
        self._planner = planner
        self._relay = relay
        self._metrics = metrics
        self._registry = registry
        self._max_body_bytes = max_body_bytes
        self._body_timeout = body_timeout

    def application(self) -> web.Application:
        """The routes, ready to be served."""
        app = web.Application(middlewares=[in_openai_shape], client_max_size=self._max_body_bytes)
        app.router.add_routes(
            [
                *(web.post(route.value, self._routed(route)) for route in Route),
                web.post("/tokenize", self._tokenize),
                web.post("/explain", self._explain),
                web.get("/v1/models", self._models, allow_head=False),
                web.get("/replicas", self._replicas, allow_head=False),
                web.get("/index", self._lane_index, allow_head=False),
                web.get("/health", self._health, allow_head=False),
                web.get("/ready", self._ready, allow_head=False),
                web.get("/metrics", self._prometheus, allow_head=False),
            ]
        )
        return app

    def _routed(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(http: web.Request) -> web.StreamResponse:
            status = HTTPStatus.INTERNAL_SERVER_ERROR.value
            try:
                request = parse_request(route, await self._body(http), pinned=http.headers.get(RANK_HEADER))
                response = await self._relay.serve(http, await self._planner.plan(request))
                status = response.status
                return response
            except ApiError as error:
                status = error.status
                raise
            except (asyncio.CancelledError, ConnectionError):
                status = CLIENT_LEFT
                raise
            finally:
                self._metrics.answered(route=route.value, status=status)

        return handle

    async def _body(self, http: web.Request) -> bytes:
        """The whole request body.

        Raises:
            ApiError: 413 where it is larger than allowed, 408 where it does not come in time.
        """
        limit = self._max_body_bytes
        message = f"the body is larger than {limit} bytes"
        too_large = ApiError(message, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE, code="request_too_large")
        if (http.content_length or 0) > limit:
            raise too_large
        try:
            async with asyncio.timeout(self._body_timeout):
                return await http.read()
        except web.HTTPRequestEntityTooLarge:
            raise too_large from None
        except TimeoutError:
            message = f"the body did not arrive within {self._body_timeout:g} s"
            raise ApiError(message, status=HTTPStatus.REQUEST_TIMEOUT, code="body_timeout") from None

    async def _explain(self, http: web.Request) -> web.Response:
        plan = await self._planner.plan(parse_any(await self._body(http)))
        decision = self._chooser.explain(
            plan.prompt, prompt_tokens=plan.prompt_tokens, lanes=plan.lanes, now=time.monotonic()
        )
        return _json(explanation(decision))

    async def _tokenize(self, http: web.Request) -> web.Response:
        """Any engine that serves the model will do; its answer goes back as it is."""
        body = await self._body(http)
        url = self._planner.tokenizing_replica(named_model(body)).url
        try:
            async with self._session.post(
                url + http.path_qs, data=payload(body), headers=for_engine(http.headers), allow_redirects=False
            ) as upstream:
                return web.Response(
                    body=await upstream.read(), status=upstream.status, headers=for_client(upstream.headers)
                )
        except aiohttp.ClientError as error:
            message = f"{url}: {error or type(error).__name__}"
            raise ApiError(message, status=HTTPStatus.BAD_GATEWAY, code="engine_lost") from None

    async def _models(self, http: web.Request) -> web.Response:
        return _json(model_list(self._fleet.replicas))

    async def _replicas(self, http: web.Request) -> web.Response:
        return _json(fleet_view(self._fleet.replicas, self._index, review=self._diagnosis.review, now=time.time()))

    async def _lane_index(self, http: web.Request) -> web.Response:
        """One lane's blocks, in the shape of the replay command, to compare with what the engine holds."""
        url, rank = http.query.get("url"), http.query.get("dp_rank", "0")
        for lane in self._fleet.lanes:
            if lane.url == url and str(lane.dp_rank) == rank and lane.status is not None:
                return _json(lane_record(self._index, lane.handle, lane.status))
        message = f"no lane with events has url={url!r:.200} and dp_rank={rank!r:.20}"
        raise ApiError(message, status=HTTPStatus.NOT_FOUND, param="url", code="unknown_lane")

    async def _health(self, http: web.Request) -> web.Response:
        """200 while the router runs, whatever its replicas do."""
        return web.Response(text="OK")

    async def _ready(self, http: web.Request) -> web.Response:
        """200 while requests should be sent here."""
        if self.draining:
            raise unavailable("the router is shutting down", code="draining")
        if not self._fleet.ready:
            raise unavailable("no replica is ready yet, or none is healthy", code="not_ready")
        return web.Response(text="OK")

    async def _prometheus(self, http: web.Request) -> web.Response:
        return web.Response(body=exposition(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type=_JSON)
