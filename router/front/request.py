"""A routed request, parsed once: what the router must know of the body, and the body itself, which goes on as it came.

Checked is what no engine could answer: bad JSON, no prompt, ids that are no token ids or too many. Everything else in
the body is the engine's to judge.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence

import msgspec

from router.choice.texts import Chat, Text
from router.front.errors import invalid
from router.front.fields import MAX_TOKEN_ID, Fields, decode_fields
from router.front.prompts import is_given, read_prompts, usual_prompt
from router.front.route import Route

__all__ = ["ANY_ID", "RoutedRequest", "named_model", "parse_any", "parse_request"]

USUAL_BYTES = 1024 * 1024
"""Larger bodies are looked at before their ids are decoded: there may be too many."""

ANY_ID = MAX_TOKEN_ID + 1
"""What every token id is below."""

_RANK = re.compile("[0-9]{1,18}")
_UNSET = msgspec.UNSET


class RoutedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``tokens`` or ``text`` is set, for the first prompt of ``prompts``; a batch is routed by its first.

    All ids are below ``ids_below``. ``cache_salt`` stands for everything in the body that separates caches. ``dp_rank``
    is a rank the client insists on. ``usual_text``: the text becomes token ids by the model's own rules, with nothing
    in the body that changes them. ``replaceable``: its answer is the same if the token ids are sent in the text's
    place. ``options_given``, ``rank_given``: ``stream_options`` and ``routed_dp_rank`` are in the body.
    """

    route: Route
    body: bytes
    model: str | None
    tokens: Sequence[int] | None
    text: Text | None
    prompts: int
    ids_below: int
    stream: bool
    usage_asked: bool
    options_given: bool
    rank_given: bool
    cache_salt: str | None
    lora_name: str | None
    dp_rank: int | None
    session_id: str | None
    usual_text: bool
    replaceable: bool

    @property
    def wants_counts_added(self) -> bool:
        """Whether its stream carries token counts only if the router asks for them."""
        return self.stream and not self.usage_asked and self.route is not Route.GENERATE


def parse_request(
    route: Route, body: bytes, *, max_ids: int, pinned: str | None = None, ids_below: int = ANY_ID
) -> RoutedRequest:
    """Read a body with at most ``max_ids`` token ids.

    ``pinned`` is the value of its ``X-Data-Parallel-Rank`` header, which wins over the body's field. ``ids_below`` is a
    guess at the vocabulary's size: where it holds it is noted, which is cheaper than to look for the largest id.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = decode_fields(body)
    if route is not Route.CHAT and len(body) <= USUAL_BYTES:
        prompt = usual_prompt(route, fields, max_ids=max_ids, ids_below=ids_below)
        if prompt is not None:
            return _routed(route, body, fields, [prompt], pinned=pinned, ids_below=ids_below)
    prompts = read_prompts(route, fields, max_ids=max_ids)
    return _routed(route, body, fields, prompts, pinned=pinned, ids_below=ANY_ID)


def parse_any(body: bytes, *, max_ids: int, pinned: str | None = None) -> RoutedRequest:
    """Read a body whose route is not said: ``messages`` is a chat, ``prompt`` a completion, the rest ``/generate``.

    ``max_ids`` and ``pinned`` as for ``parse_request``.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = decode_fields(body)
    route = Route.GENERATE
    if is_given(fields.messages):
        route = Route.CHAT
    elif is_given(fields.prompt):
        route = Route.COMPLETIONS
    elif not (is_given(fields.text) or is_given(fields.input_ids)):
        raise invalid("one of prompt, messages, text and input_ids is needed", param="prompt", code="missing_prompt")
    prompts = read_prompts(route, fields, max_ids=max_ids)
    return _routed(route, body, fields, prompts, pinned=pinned, ids_below=ANY_ID)


def named_model(body: bytes) -> str | None:
    """The model that a body of any kind names.

    Raises:
        ApiError: 400, not a JSON object.
    """
    return decode_fields(body).model


def _routed(
    route: Route,
    body: bytes,
    fields: Fields,
    prompts: Sequence[array[int] | list[int] | Text],
    *,
    pinned: str | None,
    ids_below: int,
) -> RoutedRequest:
    first, options = prompts[0], fields.stream_options
    text = first if isinstance(first, str | Chat) else None
    return RoutedRequest(
        route=route,
        body=body,
        model=fields.model if route is not Route.GENERATE else None,
        tokens=None if isinstance(first, str | Chat) else first,
        text=text,
        prompts=len(prompts),
        ids_below=ids_below,
        stream=fields.stream is True,
        usage_asked=bool(options and options.include_usage),
        options_given=options is not _UNSET,
        rank_given=fields.routed_dp_rank is not _UNSET,
        cache_salt=_salt(fields),
        lora_name=_name(fields.lora_path),
        dp_rank=_rank(pinned, fields),
        session_id=_name(fields.session_id),
        usual_text=text is not None and _usual(route, fields),
        replaceable=isinstance(first, str) and len(prompts) == 1 and not (fields.echo or fields.suffix),
    )


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _usual(route: Route, fields: Fields) -> bool:
    if fields.add_special_tokens is not None or fields.truncate_prompt_tokens is not None:
        return False
    if route is not Route.CHAT:
        return True
    told = fields.add_generation_prompt is False, fields.continue_final_message, fields.chat_template, fields.documents
    return not any(told)


def _salt(fields: Fields) -> str | None:
    """What separates caches beside the tokens. SGLang's ``extra_key`` is not in its events, so whatever has one must
    match nothing: it becomes a salt that no engine announces."""
    salt = _name(fields.cache_salt)
    if fields.extra_key:
        return f"extra_key\0{fields.extra_key!r}\0{salt!r}"
    return salt


def _rank(pinned: str | None, fields: Fields) -> int | None:
    """The rank a client insists on; one that is no number is the engine's to refuse."""
    if pinned is not None:
        return int(pinned) if _RANK.fullmatch(pinned) else None
    for value in (fields.routed_dp_rank, fields.data_parallel_rank):
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
