"""Every failure that a client can see, in OpenAI's error shape, whichever route it came from."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

__all__ = ["ApiError", "error_body", "in_openai_shape", "overloaded", "unavailable"]

_LOG = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiError(Exception):
    """A refusal with its status; ``param`` names the field at fault, ``code`` what a program can tell it by."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers


def overloaded(message: str) -> ApiError:
    """The engine is healthy and full: come back."""
    return ApiError(message, status=503, kind="server_error", code="overloaded", headers={"Retry-After": "1"})


def unavailable(message: str) -> ApiError:
    """The engine cannot answer any more."""
    return ApiError(message, status=503, kind="server_error", code="engine_dead")


def error_body(error: ApiError) -> dict[str, Any]:
    """``{"error": {...}}`` as clients of the OpenAI API expect it."""
    return {"error": {"message": str(error), "type": error.kind, "param": error.param, "code": error.code}}


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
        return _answer(ApiError("internal error, see the engine's log", status=500, kind="server_error"))


def _from_http(request: web.Request, error: web.HTTPException) -> ApiError:
    match error:
        case web.HTTPNotFound():
            return ApiError(f"no route {request.path}", status=404, code="unknown_url")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            message = f"{request.path} takes {allowed}, not {request.method}"
            return ApiError(message, status=405, code="method_not_allowed", headers={"Allow": allowed})
        case _:
            return ApiError(error.text or HTTPStatus(error.status).phrase, status=error.status)


def _answer(error: ApiError) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(error_body(error)),
        status=error.status,
        headers=error.headers,
        content_type="application/json",
    )
