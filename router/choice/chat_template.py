"""A model's chat template, run as its authors meant it: Jinja in a sandbox, with the names templates expect.

The environment follows what Hugging Face's ``apply_chat_template`` gives a template (trim_blocks, lstrip_blocks,
loop controls, ``raise_exception``, ``strftime_now``, an unescaped ``tojson``), since engines render with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import msgspec
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.choice.texts import Chat, NotTokenizableError

__all__ = ["ChatTemplate", "ChatTemplateError"]


class ChatTemplateError(ValueError):
    """A template that is no Jinja, in one line."""


class ChatTemplate:
    """One compiled template. ``special_tokens`` are names a template may use: ``bos_token`` and its like."""

    def __init__(self, source: str, *, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _strftime_now}
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ChatTemplateError(f"chat template: {error}") from None
        self._special_tokens = dict(special_tokens)

    def render(self, chat: Chat) -> str:
        """The text of a conversation, up to where the answer starts.

        Raises:
            NotTokenizableError: the template refuses it, or a message holds more than text.
        """
        more = _decode(chat.template_kwargs) or {}
        variables = {
            **self._special_tokens,
            "messages": [_plain(message) for message in _decode(chat.messages)],
            "tools": _decode(chat.tools),
            "documents": None,
            "add_generation_prompt": True,
            **(more if isinstance(more, dict) else {}),
        }
        try:
            return self._template.render(variables)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise NotTokenizableError(f"the chat template refuses the conversation: {error}") from None


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """The message with text content as one string. Engines differ in how they join several parts: those stay out."""
    match message.get("content"):
        case [{"type": "text", "text": str(text)}]:
            return {**message, "content": text}
        case None | str():
            return message
        case _:
            raise NotTokenizableError("a message's content is more than one text")


def _decode(raw: msgspec.Raw) -> Any:
    return msgspec.json.decode(raw) if bytes(raw) else None


def _to_json(value: Any, indent: int | None = None, separators: tuple[str, str] | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:  # noqa: A002  the name templates use
    return datetime.now().strftime(format)
