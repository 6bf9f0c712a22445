"""A model's chat template, run as its authors meant it: Jinja in a sandbox, with the names templates expect.

The environment is that of Hugging Face's ``apply_chat_template``: trim_blocks, lstrip_blocks, loop controls,
``raise_exception``, ``strftime_now`` and an unescaped ``tojson``. Knows nothing of what messages may hold besides text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["ChatTemplate", "ChatTemplateError", "ConversationError"]


class ChatTemplateError(ValueError):
    """A template that is no Jinja, in one line."""


class ConversationError(ValueError):
    """A conversation that a template refuses, in one line."""


class ChatTemplate:
    """One compiled template. ``special_tokens`` are names a template may use: ``bos_token`` and its like.

    Raises:
        ChatTemplateError: the source is no Jinja.
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
            raise ChatTemplateError(f"chat template: {_one_line(error)}") from None
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: object = None,
        arguments: Mapping[str, Any] | None = None,
        open_answer: bool = True,
    ) -> str:
        """The text of a conversation, its special tokens included, up to where the answer starts if that is open.

        Raises:
            ConversationError: the template refuses it.
        """
        variables = {
            **self._special_tokens,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": open_answer,
            **(arguments or {}),
        }
        try:
            return self._template.render(variables)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ConversationError(f"the chat template refuses the conversation: {_one_line(error)}") from None


def _to_json(value: Any, indent: int | None = None, separators: tuple[str, str] | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:  # noqa: A002  the name templates use
    return datetime.now().strftime(format)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
