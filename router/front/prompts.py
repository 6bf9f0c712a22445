"""The prompts in a request's body: texts, token ids or a conversation, of the shapes that the routes take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from router.choice.texts import Chat, Text
from router.front.errors import invalid
from router.front.fields import MAX_TOKEN_ID, RawFields, UsualFields
from router.front.route import Route

__all__ = ["is_given", "read_prompts", "usual_prompt"]

_TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]


class _Message(msgspec.Struct):
    role: str
    content: Any = None


_IDS = msgspec.json.Decoder(Annotated[list[_TokenId], msgspec.Meta(min_length=1)])
_PROMPT = msgspec.json.Decoder(str | list[str | _TokenId | list[_TokenId]])
_MESSAGES = msgspec.json.Decoder(Annotated[list[_Message], msgspec.Meta(min_length=1)])


def usual_prompt(route: Route, fields: UsualFields, *, max_ids: int) -> list[int] | str | None:
    """The one prompt that is there; None where that is not so, or where it must be refused."""
    if route is Route.COMPLETIONS:
        prompt = fields.prompt
    elif fields.text is None or fields.input_ids is None:
        prompt = fields.input_ids if fields.text is None else fields.text
    else:
        return None
    if not prompt or (isinstance(prompt, list) and len(prompt) > max_ids):
        return None
    return prompt


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


def _texts_or_ids(raw: msgspec.Raw, name: str, max_ids: int) -> Sequence[list[int] | str]:
    """One prompt or several, of either kind, never of both."""
    _check_count(bytes(raw), name, max_ids)
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
