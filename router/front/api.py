"""The router's routes, and nothing else: what each does is elsewhere."""

from __future__ import annotations

import time
from functools import partial
from http import HTTPStatus

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CONTENT_TYPE_LATEST

from program.refusals import in_openai_shape
from router.choice.chooser import Chooser
from router.fleet.fleet import Fleet
from router.front.body import BodyReader
from router.front.client import Client, refuse
from router.front.errors import ApiError, unavailable
from router.front.headers import ToEngine, for_client
from router.front.keys import Keys
from router.front.operations import Operations
from router.front.overview import Overview
from router.front.plan import Planner
from router.front.reader import RequestReader
from router.front.request import named_model
from router.front.route import Route
from router.front.routed import Routed
from router.front.upstream import payload
from router.front.views import explanation, model_list
from router.front.web_client import WebClient
from router.front.wishes import WishReader
from router.intake.index import BlockIndex
from router.replay import lane_record

__all__ = ["Api"]

_JSON = "application/json"


class Api:
    """One router's HTTP face. ``draining`` is set when it is about to leave: ``/ready`` then says so."""

    def __init__(
        self,
        *,
        session: aiohttp.ClientSession,
        to_engine: ToEngine,
        fleet: Fleet,
        index: BlockIndex,
        chooser: Chooser,
        wishes: WishReader,
        planner: Planner,
        routed: Routed,
        operations: Operations,
        keys: Keys,
        bodies: BodyReader,
        reader: RequestReader,
        overview: Overview,
    ) -> None:
        self.draining = False
        self._session = session
        self._to_engine = to_engine
        self._fleet = fleet
        self._index = index
        self._chooser = chooser
        self._wishes = wishes
        self._planner = planner
        self._routed = routed
        self._operations = operations
        self._keys = keys
        self._bodies = bodies
        self._reader = reader
        self._overview = overview

    def application(self, *outermost: Middleware) -> web.Application:
        """The routes, ready to be served."""
        middlewares = [*outermost, in_openai_shape("router"), *self._keys.middlewares()]
        app = web.Application(middlewares=middlewares, client_max_size=self._bodies.max_bytes)
        app.router.add_routes(
            [
                *(self._bodies.post(route.value, partial(self._route, route)) for route in Route),
                *self._operations.routes(),
                self._bodies.post("/tokenize", self._tokenize),
                self._bodies.post("/explain", self._explain),
                web.get("/v1/models", self._models, allow_head=False),
                web.get("/replicas", self._replicas, allow_head=False),
                web.get("/requests/{id}", self._receipt, allow_head=False),
                web.get("/index", self._lane_index, allow_head=False),
                web.get("/health", self._health, allow_head=False),
                web.get("/ready", self._ready, allow_head=False),
                web.get("/metrics", self._prometheus, allow_head=False),
            ]
        )
        return app

    async def serve(self, client: Client, route: Route) -> None:
        """Answer a request to a routed endpoint that did not come by way of the application.

        Raises:
            ConnectionError: the client is gone.
        """
        try:
            self._keys.require_client(client.headers)
        except ApiError as error:
            await refuse(client, error, [])
        else:
            await self._routed.serve(client, route)

    async def _route(self, route: Route, http: web.Request) -> web.StreamResponse:
        client = WebClient(http, self._bodies)
        await self._routed.serve(client, route)
        return client.response

    async def _explain(self, http: web.Request) -> web.Response:
        request = await self._reader.read_any(http)
        plan = await self._planner.plan(request, self._wishes.read(http.headers, request))
        decision = self._chooser.explain(
            plan.prompt,
            prompt_tokens=plan.prompt_tokens,
            lanes=plan.lanes,
            now=time.monotonic(),
            session=plan.session,
        )
        return _json(explanation(decision))

    async def _tokenize(self, http: web.Request) -> web.Response:
        """Any engine that serves the model will do; its answer goes back as it is."""
        body = await self._bodies.read(http)
        url = self._planner.tokenizing_replica(named_model(body)).url
        try:
            async with self._session.post(
                url + http.path_qs, data=payload(body), headers=self._to_engine(http.headers), allow_redirects=False
            ) as upstream:
                return web.Response(
                    body=await upstream.read(), status=upstream.status, headers=for_client([*upstream.headers.items()])
                )
        except aiohttp.ClientError as error:
            message = f"{url}: {error or type(error).__name__}"
            raise ApiError(message, status=HTTPStatus.BAD_GATEWAY, code="engine_lost") from None

    async def _models(self, http: web.Request) -> web.Response:
        return _json(model_list(self._fleet.replicas))

    async def _replicas(self, http: web.Request) -> web.Response:
        return _json(await self._overview.fleet())

    async def _receipt(self, http: web.Request) -> web.Response:
        """Why a request went where it went."""
        number = http.match_info["id"]
        receipt = await self._overview.receipt(number)
        if receipt is None:
            message = f"no request {number!r:.80} is remembered"
            raise ApiError(message, status=HTTPStatus.NOT_FOUND, code="unknown_request")
        return web.Response(body=receipt, content_type=_JSON)

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
        return web.Response(body=await self._overview.metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type=_JSON)
