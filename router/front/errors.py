"""Every refusal that a client can see, in OpenAI's error shape, whichever route it came from."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

import msgspec
from aiohttp import web

__all__ = ["ApiError", "error_event", "in_openai_shape", "invalid", "unavailable"]

_LOG = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiError(Exception):
    """A refusal with its status; ``param`` names the field at fault, ``code`` what a program can tell it by."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers

    def encode(self) -> bytes:
        """``{"error": {...}}`` as JSON."""
        kind = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


def invalid(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """The request can never be answered as it is."""
    return ApiError(message, status=HTTPStatus.BAD_REQUEST, param=param, code=code)


def unavailable(message: str, *, code: str) -> ApiError:
    """Nobody can answer the request now."""
    return ApiError(message, status=HTTPStatus.SERVICE_UNAVAILABLE, code=code, headers={"Retry-After": "1"})


def error_event(error: ApiError) -> bytes:
    """The error as a server-sent event, for a stream that has begun."""
    return b"data: " + error.encode() + b"\n\n"


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
            return ApiError(f"no route {request.path}", status=error.status, code="unknown_url")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            message = f"{request.path} takes {allowed}, not {request.method}"
            return ApiError(message, status=error.status, code="method_not_allowed", headers={"Allow": allowed})
        case _:
            return ApiError(error.text or HTTPStatus(error.status).phrase, status=error.status)


def _answer(error: ApiError) -> web.Response:
    return web.Response(
        body=error.encode(), status=error.status, headers=error.headers, content_type="application/json"
    )
