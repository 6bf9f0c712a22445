"""How answers are written: JSON at once, or server-sent events as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from contract.api_error import ApiError, error_event

__all__ = ["json_reply", "stream_reply"]

_ENCODE = msgspec.json.encode
_DONE = b"data: [DONE]\n\n"


def json_reply(value: object) -> web.Response:
    """200 with ``value`` as JSON."""
    return web.Response(body=_ENCODE(value), content_type="application/json")


async def stream_reply(request: web.Request, events: AsyncIterator[object]) -> web.StreamResponse:
    """One ``data:`` event a value, then ``[DONE]``.

    The answer's head leaves with the first event, so that a failure before it still has a status of its own; a
    failure after it is an event too.
    """
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    try:
        async for event in events:
            if not response.prepared:
                await response.prepare(request)
            await response.write(_event(event))
    except ApiError as error:
        if not response.prepared:
            raise
        await response.write(error_event(error))
    await response.write(_DONE)
    await response.write_eof()
    return response


def _event(value: object) -> bytes:
    return b"data: " + _ENCODE(value) + b"\n\n"
