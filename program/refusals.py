"""Every failure that a client can see, in OpenAI's error shape, whichever route it came from."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Middleware

from contract.api_error import ApiError, no_route, wrong_method

__all__ = ["in_openai_shape", "internal_error"]

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def in_openai_shape(program: str) -> Middleware:
    """A middleware that turns whatever a handler raises into an answer; ``program`` names the log that says more.

    Its blanket except is a request's top level.
    """
    log = logging.getLogger(program)

    @web.middleware
    async def answer_failures(request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except ApiError as error:
            return _answer(error)
        except web.HTTPException as error:
            return _answer(_from_http(request, error))
        except ConnectionError:
            raise  # the client is gone, there is nobody to answer
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return _answer(internal_error(program))

    return answer_failures


def internal_error(program: str) -> ApiError:
    """What ``program``'s log says more of."""
    message = f"internal error, see the {program}'s log"
    return ApiError(message, status=HTTPStatus.INTERNAL_SERVER_ERROR, code="internal_error")


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
