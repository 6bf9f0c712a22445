"""The prompts in a request's body: texts, token ids or a conversation, of the shapes that the routes take."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from contract.hashing import read_ids
from router.choice.texts import Chat, Text
from router.front.errors import invalid
from router.front.fields import MAX_TOKEN_ID, RawFields
from router.front.route import Route

__all__ = ["is_given", "read_prompts", "usual_prompt"]

_TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]


class _Message(msgspec.Struct):
    role: str
    content: Any = None


_TEXT = msgspec.json.Decoder(str)
_IDS = msgspec.json.Decoder(Annotated[list[_TokenId], msgspec.Meta(min_length=1)])
_PROMPT = msgspec.json.Decoder(str | list[str | _TokenId | list[_TokenId]])
_MESSAGES = msgspec.json.Decoder(Annotated[list[_Message], msgspec.Meta(min_length=1)])


def usual_prompt(route: Route, fields: RawFields, *, max_ids: int, ids_below: int) -> array[int] | str | None:
    """The one prompt, a text or ids below ``ids_below``; None for all other bodies, also those to be refused."""
    text, ids = (fields.prompt, fields.prompt) if route is Route.COMPLETIONS else (fields.text, fields.input_ids)
    if text is not ids and is_given(text) and is_given(ids):
        return None
    return _one_text(bytes(text)) or _one_list(bytes(ids), max_ids=max_ids, ids_below=ids_below)


def read_prompts(route: Route, fields: RawFields, *, max_ids: int) -> Sequence[list[int] | Text]:
    """All prompts; at least one, none of them empty, all of a kind.

    Raises:
        ApiError: 400, naming the field.
    """
    if route is Route.CHAT:
        return [_chat(fields)]
    if route is Route.COMPLETIONS:
        if not is_given(fields.prompt):
            raise invalid("prompt is missing", param="prompt", code="missing_prompt")
        return _texts_or_ids(fields.prompt, "prompt", max_ids)
    given = {name: raw for name in ("text", "input_ids") if is_given(raw := getattr(fields, name))}
    if len(given) != 1:
        raise invalid("exactly one of text and input_ids is needed", param="text", code="missing_prompt")
    [(name, raw)] = given.items()
    prompts = _texts_or_ids(raw, name, max_ids)
    if (name == "text") is not isinstance(prompts[0], str):
        raise invalid(f"{name} holds {'token ids' if name == 'text' else 'text'}", param=name)
    return prompts


def is_given(raw: msgspec.Raw) -> bool:
    """Whether a field is there, and not null."""
    return bytes(raw) not in (b"", b"null")


def _chat(fields: RawFields) -> Chat:
    if not is_given(fields.messages):
        raise invalid("messages is missing", param="messages", code="missing_prompt")
    try:
        _MESSAGES.decode(fields.messages)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise invalid(f"messages: {error}", param="messages") from None
    optional = {"tools": fields.tools, "template_kwargs": fields.chat_template_kwargs}
    return Chat(messages=fields.messages, **{name: raw for name, raw in optional.items() if is_given(raw)})


def _one_text(json: bytes) -> str | None:
    try:
        return _TEXT.decode(json) if json.startswith(b'"') else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _one_list(json: bytes, *, max_ids: int, ids_below: int) -> array[int] | None:
    ids = read_ids(json, below=ids_below) if json.startswith(b"[") else None
    return None if ids is None or len(ids) > max_ids else ids


def _texts_or_ids(raw: msgspec.Raw, name: str, max_ids: int) -> Sequence[list[int] | str]:
    """One prompt or several, of either kind, never of both."""
    _check_count(bytes(raw), name, max_ids)
    try:
        return [_IDS.decode(raw)]
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


def _check_count(raw: bytes, name: str, max_ids: int) -> None:
    """Refuse more ids than are taken by their commas, before an object is made of each of them."""
    if len(raw) <= 2 * max_ids or b'"' in raw:  # an id and its comma take two bytes; texts have commas of their own
        return
    count = raw.count(b",") + 1
    if count > max_ids:
        message = f"{name} holds {count} token ids, and a request may have {max_ids}"
        raise invalid(message, param=name, code="context_length_exceeded")


def _as_list(value: str | list[Any], name: str) -> list[list[int] | str]:
    if isinstance(value, str):
        return [value]
    kinds = set(map(type, value))
    if len(kinds) > 1:
        raise invalid(f"{name} mixes texts, token ids and lists of token ids", param=name)
    if not value:
        raise invalid(f"{name} is empty", param=name)
    return value
