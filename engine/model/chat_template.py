"""A model's chat template, run as its authors meant it: Jinja in a sandbox, with the names templates expect.

The environment is that of Hugging Face's ``apply_chat_template``: trim_blocks, lstrip_blocks, loop controls,
``raise_exception``, ``strftime_now`` and an unescaped ``tojson``. The router has the same rules, since it cannot import
the engine; a test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.model.config import ModelError
from engine.model.tokenizer import TokenizerError

__all__ = ["ChatTemplate"]


class ChatTemplate:
    """One compiled template. ``special_tokens`` are names a template may use: ``bos_token`` and its like.

    Raises:
        ModelError: the source is no Jinja.
    """

    def __init__(self, source: str, *, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _strftime_now}
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ModelError(f"chat template: {error}") from None
        self._special_tokens = dict(special_tokens)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, arguments: Mapping[str, Any] | None, open_answer: bool
    ) -> str:
        """The text of a conversation.

        Raises:
            TokenizerError: the template refuses it, or a message holds more than text.
        """
        variables = {
            **self._special_tokens,
            "messages": [_plain(message) for message in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": open_answer,
            **(arguments or {}),
        }
        try:
            return self._template.render(variables)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise TokenizerError(f"the chat template refuses the conversation: {_one_line(error)}") from None


def _plain(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with its content as one string; several text parts stand one a line, as in vLLM."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message
    if not isinstance(content, Sequence):
        kind = type(content).__name__
        raise TokenizerError(f"message content must be a string or a list of text parts, got {kind}")
    return {**message, "content": "\n".join(map(_text_of_part, content))}


def _text_of_part(part: object) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case _:
            raise TokenizerError('a content part must be {"type": "text", "text": "..."}')


def _to_json(value: Any, indent: int | None = None, separators: tuple[str, str] | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:  # noqa: A002  the name templates use
    return datetime.now().strftime(format)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
