"""A served model's own tokenizer, from its files: ``tokenizer.json``, and the chat template beside it.

Read are ``tokenizer_config.json`` (special tokens, template) and ``chat_template.jinja``, the layout of model folders
as published. A folder without a template tokenizes texts only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from router.choice.chat_template import ChatTemplate, ChatTemplateError
from router.choice.segments import SegmentedTokenizer
from router.choice.texts import Chat, NotTokenizableError

__all__ = ["FileTokenizer", "TokenizerFileError", "load_tokenizer"]

_TOKENIZER, _CONFIG, _TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class TokenizerFileError(ValueError):
    """Files that make no tokenizer; the message names the file."""


CACHE_BYTES = 64 * 1024 * 1024


class FileTokenizer:
    """Thread-safe. What was tokenized before is remembered, within ``CACHE_BYTES``."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer = SegmentedTokenizer(tokenizer, cache_bytes=CACHE_BYTES)
        self._template = template

    def encode(self, text: str) -> list[int]:
        """With the special tokens that the model puts around a prompt."""
        return self._ids(text, special=True)

    def encode_chat(self, chat: Chat) -> list[int]:
        """Through the chat template, which writes the special tokens itself."""
        if self._template is None:
            raise NotTokenizableError("the tokenizer has no chat template")
        return self._ids(self._template.render(chat), special=False)

    def _ids(self, text: str, *, special: bool) -> list[int]:
        try:
            return self._tokenizer.encode(text, special=special)
        except (TypeError, UnicodeEncodeError):  # the library's words for it, by version
            raise NotTokenizableError("the text has a lone surrogate and no UTF-8 form") from None


def load_tokenizer(path: Path) -> FileTokenizer:
    """Read a ``tokenizer.json``, or the one in a folder, and what lies beside it. Blocking: seconds for large ones.

    Raises:
        TokenizerFileError: a file is missing or cannot be read.
    """
    file = path / _TOKENIZER if path.is_dir() else path
    if not file.is_file():
        raise TokenizerFileError(f"there is no {file}")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for whatever a file has wrong
        raise TokenizerFileError(f"{file}: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return FileTokenizer(tokenizer, _template(file.parent))


def _template(folder: Path) -> ChatTemplate | None:
    config = _config(folder / _CONFIG)
    file = folder / _TEMPLATE
    try:
        source = file.read_text(encoding="utf-8") if file.is_file() else _named_default(config.get("chat_template"))
        return None if source is None else ChatTemplate(source, special_tokens=_special_tokens(config))
    except (OSError, UnicodeDecodeError, ChatTemplateError) as error:
        raise TokenizerFileError(f"{folder}: {error}") from None


def _config(file: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any]) if file.is_file() else {}
    except (OSError, msgspec.MsgspecError) as error:
        raise TokenizerFileError(f"{file}: {error}") from None


def _named_default(template: object) -> str | None:
    """A template, or of several named ones the default."""
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Names to texts; a token may stand as a text or as an object with a ``content``."""
    found = {}
    for name in _SPECIAL:
        token = config.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            found[name] = text
    return found
