"""Every refusal of the router that a client can see, in OpenAI's error shape, whichever route it came from."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web

from contract.api_error import ApiError, error_event, no_route, wrong_method

__all__ = ["ApiError", "error_event", "in_openai_shape", "invalid", "unavailable"]

_LOG = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def invalid(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """The request can never be answered as it is."""
    return ApiError(message, status=HTTPStatus.BAD_REQUEST, param=param, code=code)


def unavailable(message: str, *, code: str) -> ApiError:
    """Nobody can answer the request now."""
    return ApiError(message, status=HTTPStatus.SERVICE_UNAVAILABLE, code=code, headers={"Retry-After": "1"})


@web.middleware
async def in_openai_shape(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Turn whatever a handler raises into an answer. The one blanket except: a request's top level."""
    try:
        return await handler(request)
    except ApiError as error:
        return _answer(error)
    except web.HTTPException as error:
        return _answer(_from_http(request, error))
    except ConnectionError:
        raise  # the client is gone, there is nobody to answer
    except Exception:
        _LOG.exception("%s %s failed", request.method, request.path)
        message = "internal error, see the router's log"
        return _answer(ApiError(message, status=HTTPStatus.INTERNAL_SERVER_ERROR, code="internal_error"))


def _from_http(request: web.Request, error: web.HTTPException) -> ApiError:
    match error:
        case web.HTTPNotFound():
            return no_route(request.path)
        case web.HTTPMethodNotAllowed():
            return wrong_method(request.path, request.method, allowed=error.allowed_methods)
        case _:
            return ApiError(error.text or HTTPStatus(error.status).phrase, status=error.status)


def _answer(error: ApiError) -> web.Response:
    return web.Response(
        body=error.encode(), status=error.status, headers=error.headers, content_type="application/json"
    )
