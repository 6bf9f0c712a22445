"""The tokenizer of a Hugging Face folder: ``tokenizer.json``, and the chat template and special tokens beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from engine.model.chat_template import ChatTemplate
from engine.model.config import ModelError
from engine.model.text_tokenizer import TextTokenizer

__all__ = ["read_hf_tokenizer"]

_TOKENIZER, _CONFIG, _TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def read_hf_tokenizer(folder: Path, *, vocab_size: int) -> TextTokenizer:
    """The tokenizer in ``folder``, for a model of so many ids. A folder without a template serves no chats.

    Raises:
        ModelError: a file is missing or cannot be read, or has ids that the model does not have.
    """
    file = folder / _TOKENIZER
    if not file.is_file():
        raise ModelError(f"{folder} has no {_TOKENIZER}")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for whatever a file has wrong
        raise ModelError(f"{file}: {' '.join(str(error).split())}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return TextTokenizer(tokenizer, _template(folder), name=str(folder), vocab_size=vocab_size)


def _template(folder: Path) -> ChatTemplate | None:
    config = _config(folder / _CONFIG)
    file = folder / _TEMPLATE
    try:
        source = file.read_text(encoding="utf-8") if file.is_file() else _default_template(config)
        return None if source is None else ChatTemplate(source, special_tokens=_special_tokens(config))
    except (OSError, UnicodeDecodeError, ModelError) as error:
        raise ModelError(f"{folder}: {error}") from None


def _config(file: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any]) if file.is_file() else {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{file}: {error}") from None


def _default_template(config: dict[str, Any]) -> str | None:
    """The template in the config; of several named ones, the default."""
    template = config.get("chat_template")
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
