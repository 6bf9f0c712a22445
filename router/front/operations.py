"""Changes to the fleet while it runs: replicas taken in and out. They need the admin key (see ``keys``)."""

from __future__ import annotations

import time
from http import HTTPStatus

import msgspec
from aiohttp import web

from router.config import ConfigError, normalize_url
from router.fleet.fleet import Fleet
from router.front.body import BodyReader
from router.front.changes import Changes
from router.front.errors import ApiError, invalid
from router.front.keys import Keys
from router.front.views import replica_view
from router.intake.index import BlockIndex
from router.proof.diagnosis import Diagnosis

__all__ = ["Operations"]


class _NewReplica(msgspec.Struct):
    url: str


class Operations:
    """The handlers."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        changes: Changes,
        index: BlockIndex,
        diagnosis: Diagnosis,
        keys: Keys,
        bodies: BodyReader,
    ) -> None:
        self._fleet = fleet
        self._changes = changes
        self._index = index
        self._diagnosis = diagnosis
        self._keys = keys
        self._bodies = bodies

    def routes(self) -> list[web.RouteDef]:
        """``POST /replicas`` with ``{"url": ...}``, ``DELETE /replicas?url=``."""
        return [self._bodies.post("/replicas", self._add), web.delete("/replicas", self._remove)]

    async def _add(self, http: web.Request) -> web.Response:
        """201 and the replica, or 200 and the replica where the fleet had it already."""
        self._keys.require_admin(http)
        try:
            wanted = msgspec.json.decode(await self._bodies.read(http), type=_NewReplica)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise invalid(f'the body is not {{"url": "http://HOST:PORT"}}: {error}', param="url") from None
        url = _base_url(wanted.url)
        known = any(replica.url == url for replica in self._fleet.replicas)
        await self._changes.add(url)
        replica = self._fleet.replica(url)
        view = replica_view(replica, self._index, faults=self._diagnosis.review(replica), now=time.time())
        status = HTTPStatus.OK if known else HTTPStatus.CREATED
        return web.Response(body=msgspec.json.encode(view), status=status, content_type="application/json")

    async def _remove(self, http: web.Request) -> web.Response:
        """200 and the URL; requests that run there run on."""
        self._keys.require_admin(http)
        url = _base_url(http.query.get("url", ""))
        try:
            await self._changes.remove(url)
        except KeyError:
            message = f"no replica {url!r:.200}"
            raise ApiError(message, status=HTTPStatus.NOT_FOUND, param="url", code="unknown_replica") from None
        return web.json_response({"removed": url})


def _base_url(url: str) -> str:
    try:
        return normalize_url(url)
    except ConfigError as error:
        raise invalid(str(error), param="url") from None
