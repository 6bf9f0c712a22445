"""How many requests the router takes at once: each holds a body and a connection, so there is an end to it."""

from __future__ import annotations

from http import HTTPStatus
from types import TracebackType

from router.front.errors import ApiError

__all__ = ["Admission"]


class Admission:
    """A context for each request; ``limit`` of them may be inside."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self.inside = 0

    def __enter__(self) -> None:
        """Come in.

        Raises:
            ApiError: 429, with Retry-After.
        """
        if self.inside >= self._limit:
            message = f"the router already has {self._limit} requests in flight"
            raise ApiError(
                message, status=HTTPStatus.TOO_MANY_REQUESTS, code="too_many_requests", headers={"Retry-After": "1"}
            )
        self.inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.inside -= 1
