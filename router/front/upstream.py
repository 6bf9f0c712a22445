"""The body that an engine gets: the client's own bytes wherever possible.

Bodies change in three places only: the rank of ``/generate``, ``stream_options`` where the router wants token counts
that the client did not ask for, and token ids in a text's place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO

import msgspec

from contract.hashing import write_ids
from router.front.request import RoutedRequest
from router.front.route import Route

__all__ = ["payload", "upstream_body"]

LARGE_BODY_BYTES = 1024 * 1024
_JSON_SPACE = b" \t\r\n"
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT_AND_IDS = {Route.COMPLETIONS: ("prompt", "prompt"), Route.GENERATE: ("text", "input_ids")}
"""The fields that hold a prompt's text, and its ids. A conversation has no such second form."""

_RANK, _OPTIONS = "routed_dp_rank", "stream_options"
_WITH_USAGE = msgspec.Raw(b'{"include_usage":true}')


def upstream_body(request: RoutedRequest, *, dp_rank: int | None, tokens: Sequence[int] | None = None) -> bytes:
    """The body to send: the client's bytes, or the same fields with the router's own among them.

    ``tokens`` go in the place of the text, where there is one.
    """
    replacement = tokens if request.replaceable else None
    added: dict[str, msgspec.Raw] = {}
    if dp_rank is not None and request.route is Route.GENERATE:
        added[_RANK] = msgspec.Raw(b"%d" % dp_rank)
    if request.wants_counts_added:
        added[_OPTIONS] = _WITH_USAGE
    if (
        replacement is None
        and not (request.rank_given and _RANK in added)
        and not (request.options_given and _OPTIONS in added)
    ):
        return _appended(request.body, added) if added else request.body
    fields = _FIELDS.decode(request.body)
    if _OPTIONS in added:
        added[_OPTIONS] = _with_usage(fields.get(_OPTIONS))
    if replacement is not None:
        text, ids = _TEXT_AND_IDS[request.route]
        fields.pop(text)
        added[ids] = msgspec.Raw(write_ids(replacement))
    return msgspec.json.encode(fields | added)


def payload(body: bytes) -> bytes | BytesIO:
    """A body as a client session takes it: a large one is then written in parts, so that nobody waits for it."""
    return body if len(body) <= LARGE_BODY_BYTES else BytesIO(body)


def _appended(body: bytes, fields: Mapping[str, msgspec.Raw]) -> bytes:
    """A JSON object that holds something, with more behind it: cheaper than taking a long prompt's object apart."""
    return body.rstrip(_JSON_SPACE)[:-1] + b"," + msgspec.json.encode(fields)[1:]


def _with_usage(options: msgspec.Raw | None) -> msgspec.Raw:
    kept = {} if options is None or bytes(options) == b"null" else _FIELDS.decode(options)
    return msgspec.Raw(msgspec.json.encode({**kept, "include_usage": True}))
