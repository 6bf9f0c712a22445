"""Heads of the requests that nearly all are: a POST to a routed endpoint whose body has a length and nothing else.

Everything that needs a second thought is not usual, and is left to aiohttp's server: other methods, paths and versions,
queries, bodies in chunks or packed, expectations, upgrades, heads in parts or too long, and whatever could be read in
two ways. So what is read here can be read in one way only. Pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from multidict import CIMultiDict

from router.front.route import Route

__all__ = ["UsualHead", "usual_head"]

MAX_HEAD_BYTES = 8190
_HEAD = re.compile(
    rb"POST (/[a-z1/]+) HTTP/1\.1\r\n"  # the paths below need no other characters
    rb"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r\n){1,100})\r\n"
)
_LENGTH = re.compile("[0-9]{1,12}", re.ASCII)
_ROUTES = {route.value.encode(): route for route in Route}
_UNUSUAL = ("Transfer-Encoding", "Content-Encoding", "Expect", "Upgrade", "TE", "Trailer")


class UsualHead(NamedTuple):
    """``size`` is its own, ``length`` the body's; in bytes."""

    route: Route
    headers: CIMultiDict[str]
    length: int
    size: int


def usual_head(data: bytes) -> UsualHead | None:
    """The head at the beginning of what came over a connection; None where it is not a usual one, or not all there."""
    found = _HEAD.match(data, 0, MAX_HEAD_BYTES)
    route = None if found is None else _ROUTES.get(found[1])
    if found is None or route is None:
        return None
    headers = CIMultiDict(map(_field, found[2].decode(errors="surrogateescape").split("\r\n")[:-1]))
    length = headers.getall("Content-Length", ())
    if len(length) != 1 or _LENGTH.fullmatch(length[0]) is None or any(name in headers for name in _UNUSUAL):
        return None
    if headers.get("Connection", "keep-alive").lower() != "keep-alive":
        return None
    return UsualHead(route, headers, int(length[0]), found.end())


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name, value.strip(" \t")
