"""A routed request, parsed once: what the router must know of the body, and the body itself, which goes on as it came.

Checked is what no engine could answer: bad JSON, no prompt, ids that are no token ids. Everything else in the body is
the engine's to judge. Bodies change in two places only, and only around the prompt, never in it: the rank of
``/generate``, and ``stream_options`` where the router wants token counts that the client did not ask for.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from io import BytesIO
from typing import Annotated, Any

import msgspec

from router.choice.texts import Chat, Text
from router.front.errors import invalid

__all__ = [
    "MAX_TOKEN_ID",
    "Route",
    "RoutedRequest",
    "named_model",
    "parse_any",
    "parse_request",
    "payload",
    "upstream_body",
]

MAX_TOKEN_ID = 2**31 - 1
"""Engines hold ids as signed 32-bit numbers at least; no vocabulary comes near."""

LARGE_BODY_BYTES = 1024 * 1024

_RANK = re.compile("[0-9]{1,18}")
_ABSENT = msgspec.Raw()
_TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]


class Route(enum.StrEnum):
    """The routed endpoints."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    GENERATE = "/generate"


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(msgspec.Struct):
    model: str | None = None
    prompt: msgspec.Raw = _ABSENT
    messages: msgspec.Raw = _ABSENT
    text: msgspec.Raw = _ABSENT
    input_ids: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    chat_template_kwargs: msgspec.Raw = _ABSENT
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    session_id: Any = None
    add_special_tokens: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None
    chat_template: Any = None
    documents: Any = None
    truncate_prompt_tokens: Any = None
    echo: Any = None
    suffix: Any = None
    cache_salt: Any = None
    extra_key: Any = None
    lora_path: Any = None
    routed_dp_rank: Any = None
    data_parallel_rank: Any = None


class _Message(msgspec.Struct):
    role: str
    content: Any = None


_BODY = msgspec.json.Decoder(_Body)
_IDS = msgspec.json.Decoder(Annotated[list[_TokenId], msgspec.Meta(min_length=1)])
_PROMPT = msgspec.json.Decoder(str | list[str | _TokenId | list[_TokenId]])
_MESSAGES = msgspec.json.Decoder(Annotated[list[_Message], msgspec.Meta(min_length=1)])
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT_AND_IDS = {Route.COMPLETIONS: ("prompt", "prompt"), Route.GENERATE: ("text", "input_ids")}
"""The fields that hold a prompt's text, and its ids. A conversation has no such second form."""


class RoutedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``tokens`` or ``text`` is set, for the first prompt of ``prompts``; a batch is routed by its first.

    ``cache_salt`` stands for everything in the body that separates caches. ``dp_rank`` is a rank the client insists on.
    ``usual_text``: the text becomes token ids by the model's own rules, with nothing in the body that changes them.
    ``replaceable``: its answer is the same if the token ids are sent in the text's place.
    """

    route: Route
    body: bytes
    model: str | None
    tokens: Sequence[int] | None
    text: Text | None
    prompts: int
    stream: bool
    usage_asked: bool
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


def parse_request(route: Route, body: bytes, *, pinned: str | None = None) -> RoutedRequest:
    """Read a body; ``pinned`` is the value of its ``X-Data-Parallel-Rank`` header, which wins over the body's field.

    Raises:
        ApiError: 400, naming the field.
    """
    return _routed(route, body, _decode(body), pinned)


def parse_any(body: bytes, *, pinned: str | None = None) -> RoutedRequest:
    """Read a body whose route is not said: ``messages`` is a chat, ``prompt`` a completion, the rest ``/generate``.

    ``pinned`` as for ``parse_request``.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = _decode(body)
    route = Route.GENERATE
    if _given(fields.messages):
        route = Route.CHAT
    elif _given(fields.prompt):
        route = Route.COMPLETIONS
    elif not (_given(fields.text) or _given(fields.input_ids)):
        raise invalid("one of prompt, messages, text and input_ids is needed", param="prompt", code="missing_prompt")
    return _routed(route, body, fields, pinned)


def named_model(body: bytes) -> str | None:
    """The model that a body of any kind names.

    Raises:
        ApiError: 400, not a JSON object.
    """
    return _decode(body).model


def upstream_body(request: RoutedRequest, *, dp_rank: int | None, tokens: Sequence[int] | None = None) -> bytes:
    """The body to send: the client's bytes, or the same fields with the router's own among them.

    ``tokens`` go in the place of the text, where there is one.
    """
    added: dict[str, msgspec.Raw] = {}
    dropped: str | None = None
    if tokens is not None and request.replaceable:
        dropped, name = _TEXT_AND_IDS[request.route]
        added[name] = msgspec.Raw(msgspec.json.encode(tokens))
    if dp_rank is not None and request.route is Route.GENERATE:
        added["routed_dp_rank"] = msgspec.Raw(b"%d" % dp_rank)
    if not added and not request.wants_counts_added:
        return request.body
    fields = _FIELDS.decode(request.body)
    if request.wants_counts_added:
        added["stream_options"] = _with_usage(fields.get("stream_options"))
    if dropped is not None:
        fields.pop(dropped)
    return msgspec.json.encode(fields | added)


def payload(body: bytes) -> bytes | BytesIO:
    """A body as the client session takes it: a large one is then written in parts, so that nobody waits for it."""
    return body if len(body) <= LARGE_BODY_BYTES else BytesIO(body)


def _with_usage(options: msgspec.Raw | None) -> msgspec.Raw:
    kept = {} if options is None or bytes(options) == b"null" else _FIELDS.decode(options)
    return msgspec.Raw(msgspec.json.encode({**kept, "include_usage": True}))


def _decode(body: bytes) -> _Body:
    try:
        return _BODY.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(f"request body: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"the body is not JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise invalid("the body is not JSON that can be read: nested too deeply", code="invalid_json") from None


def _routed(route: Route, body: bytes, fields: _Body, pinned: str | None) -> RoutedRequest:
    prompts = _prompts(route, fields)
    first = prompts[0]
    options = fields.stream_options
    return RoutedRequest(
        route=route,
        body=body,
        model=fields.model if route is not Route.GENERATE else None,
        tokens=first if isinstance(first, list) else None,
        text=None if isinstance(first, list) else first,
        prompts=len(prompts),
        stream=bool(fields.stream),
        usage_asked=bool(options and options.include_usage),
        cache_salt=_salt(fields),
        lora_name=fields.lora_path if isinstance(fields.lora_path, str) and fields.lora_path else None,
        dp_rank=_rank(pinned, fields),
        session_id=fields.session_id if isinstance(fields.session_id, str) and fields.session_id else None,
        usual_text=_usual(route, fields),
        replaceable=isinstance(first, str) and len(prompts) == 1 and not (fields.echo or fields.suffix),
    )


def _usual(route: Route, fields: _Body) -> bool:
    if fields.add_special_tokens is not None or fields.truncate_prompt_tokens is not None:
        return False
    if route is not Route.CHAT:
        return True
    told = fields.add_generation_prompt is False, fields.continue_final_message, fields.chat_template, fields.documents
    return not any(told)


def _prompts(route: Route, fields: _Body) -> Sequence[list[int] | Text]:
    if route is Route.CHAT:
        return [_chat(fields)]
    if route is Route.COMPLETIONS:
        if not _given(fields.prompt):
            raise invalid("prompt is missing", param="prompt", code="missing_prompt")
        return _texts_or_ids(fields.prompt, "prompt")
    given = {name: raw for name in ("text", "input_ids") if _given(raw := getattr(fields, name))}
    if len(given) != 1:
        raise invalid("exactly one of text and input_ids is needed", param="text", code="missing_prompt")
    [(name, raw)] = given.items()
    prompts = _texts_or_ids(raw, name)
    if (name == "text") is not isinstance(prompts[0], str):
        raise invalid(f"{name} holds {'token ids' if name == 'text' else 'text'}", param=name)
    return prompts


def _given(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"", b"null")


def _chat(fields: _Body) -> Chat:
    if not _given(fields.messages):
        raise invalid("messages is missing", param="messages", code="missing_prompt")
    try:
        _MESSAGES.decode(fields.messages)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise invalid(f"messages: {error}", param="messages") from None
    optional = {
        "tools": fields.tools,
        "template_kwargs": fields.chat_template_kwargs,
    }
    given = {name: raw for name, raw in optional.items() if _given(raw)}
    return Chat(messages=fields.messages, **given)


def _texts_or_ids(raw: msgspec.Raw, name: str) -> Sequence[list[int] | str]:
    """One prompt or several, of either kind, never of both."""
    try:
        return [_IDS.decode(raw)]  # the usual case, in one pass over the ids
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    try:
        value = _PROMPT.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise invalid(f"{name}: {error}", param=name) from None
    prompts = _as_list(value, name)
    if any(not prompt for prompt in prompts):
        raise invalid(f"{name} is empty", param=name)
    return prompts


def _as_list(value: str | list[Any], name: str) -> list[list[int] | str]:
    if isinstance(value, str):
        return [value]
    kinds = set(map(type, value))
    if len(kinds) > 1:
        raise invalid(f"{name} mixes texts, token ids and lists of token ids", param=name)
    if not value:
        raise invalid(f"{name} is empty", param=name)
    return value


def _salt(fields: _Body) -> str | None:
    """What separates caches beside the tokens. SGLang's ``extra_key`` is not in its events, so whatever has one must
    match nothing: it becomes a salt that no engine announces."""
    salt = fields.cache_salt if isinstance(fields.cache_salt, str) and fields.cache_salt else None
    if fields.extra_key:
        return f"extra_key\0{fields.extra_key!r}\0{salt!r}"
    return salt


def _rank(pinned: str | None, fields: _Body) -> int | None:
    """The rank a client insists on; one that is no number is the engine's to refuse."""
    if pinned is not None:
        return int(pinned) if _RANK.fullmatch(pinned) else None
    for value in (fields.routed_dp_rank, fields.data_parallel_rank):
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
