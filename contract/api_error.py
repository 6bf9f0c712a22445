"""A refusal as clients of the OpenAI API expect it: the shape that engine and router have in common.

Says nothing of when something is refused; statuses are HTTP's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus

import msgspec

__all__ = ["ApiError", "error_event", "no_route", "wrong_method"]


class ApiError(Exception):
    """A refusal with its status; ``param`` names the field at fault, ``code`` what a program can tell it by."""

    def __init__(
        self,
        message: str,
        *,
        status: int = HTTPStatus.BAD_REQUEST,
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


def error_event(error: ApiError) -> bytes:
    """The error as a server-sent event, for a stream that has begun."""
    return b"data: " + error.encode() + b"\n\n"


def no_route(path: str) -> ApiError:
    """Nothing is served at ``path``."""
    return ApiError(f"no route {path}", status=HTTPStatus.NOT_FOUND, code="unknown_url")


def wrong_method(path: str, method: str, *, allowed: Iterable[str]) -> ApiError:
    """What is served at ``path`` takes other methods."""
    takes = ", ".join(sorted(allowed))
    return ApiError(
        f"{path} takes {takes}, not {method}",
        status=HTTPStatus.METHOD_NOT_ALLOWED,
        code="method_not_allowed",
        headers={"Allow": takes},
    )
