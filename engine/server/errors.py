"""How the engine says that it cannot take a request, or finish it."""

from __future__ import annotations

from http import HTTPStatus

from contract.api_error import ApiError

__all__ = ["overloaded", "unavailable"]


def overloaded(message: str) -> ApiError:
    """The engine is healthy and full: come back."""
    return ApiError(message, status=HTTPStatus.SERVICE_UNAVAILABLE, code="overloaded", headers={"Retry-After": "1"})


def unavailable(message: str) -> ApiError:
    """The engine cannot answer any more."""
    return ApiError(message, status=HTTPStatus.SERVICE_UNAVAILABLE, code="engine_dead")
