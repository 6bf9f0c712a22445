"""What the router refuses, in OpenAI's error shape."""

from __future__ import annotations

from http import HTTPStatus

from contract.api_error import ApiError, error_event

__all__ = ["ApiError", "error_event", "invalid", "unavailable"]


def invalid(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """The request can never be answered as it is."""
    return ApiError(message, status=HTTPStatus.BAD_REQUEST, param=param, code=code)


def unavailable(message: str, *, code: str) -> ApiError:
    """Nobody can answer the request now."""
    return ApiError(message, status=HTTPStatus.SERVICE_UNAVAILABLE, code=code, headers={"Retry-After": "1"})
