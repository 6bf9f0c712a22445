"""A request's body as one of `engine.server.bodies`, or why it is none. Bounded in size and in time."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

import msgspec
from aiohttp import web

from contract.api_error import ApiError

__all__ = ["read_body"]

_BODY_SECONDS = 30.0
_FIELD_AT_FAULT = re.compile(r"(?: - at `\$\.|required field `)(\w+)")
_Body = TypeVar("_Body", bound=msgspec.Struct)


async def read_body(request: web.Request, shape: type[_Body]) -> _Body:
    """The body as ``shape``.

    Raises:
        ApiError: 413, longer than the server reads; 408, too long in coming; 400, packed wrongly, or not JSON
            of that shape.
    """
    try:
        return msgspec.json.decode(await _read(request), type=shape)
    except RecursionError:
        raise ApiError("the body is not JSON that can be read: nested too deeply") from None
    except msgspec.ValidationError as error:
        where = _FIELD_AT_FAULT.search(str(error))
        raise ApiError(str(error), param=where.group(1) if where else None, code="invalid_value") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(f"the body is not JSON: {error}", code="invalid_json") from None


async def _read(request: web.Request) -> bytes:
    limit = request.client_max_size
    too_large = ApiError(f"the body is larger than {limit} bytes", status=413, code="request_too_large")
    if (request.content_length or 0) > limit:
        raise too_large
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise ApiError(f"the body did not arrive within {_BODY_SECONDS:g} s", status=408) from None
    except web.HTTPRequestEntityTooLarge:
        raise too_large from None
    except web.RequestPayloadError as error:
        message = f"the body cannot be read: {' '.join(str(error).split())}"
        raise ApiError(message, code="invalid_body") from None
