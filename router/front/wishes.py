"""What a client asks of the choice itself: one replica, or the one that its session was at."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from router.config import ConfigError, normalize_url
from router.front.errors import invalid
from router.front.headers import PIN_HEADER
from router.front.request import RoutedRequest

__all__ = ["WishReader", "Wishes"]


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """``replica`` is the base URL that the client insists on; ``session`` the name under which it came before."""

    replica: str | None = None
    session: str | None = None


class WishReader:
    """``session_header`` names the header that holds a session; without one it is the body's ``session_id``."""

    def __init__(self, *, session_header: str | None) -> None:
        self._session_header = session_header

    def read(self, headers: Mapping[str, str], request: RoutedRequest) -> Wishes:
        """The wishes of a request.

        Raises:
            ApiError: 400, the replica is named by something that is no base URL.
        """
        session = request.session_id if self._session_header is None else headers.get(self._session_header)
        return Wishes(replica=_pin(headers.get(PIN_HEADER)), session=session or None)


def _pin(value: str | None) -> str | None:
    if value is None:
        return None
    try:
        return normalize_url(value)
    except ConfigError as error:
        raise invalid(f"{PIN_HEADER}: {error}", param=PIN_HEADER) from None
