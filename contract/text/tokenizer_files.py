"""A model's tokenizer as its files have it: ``tokenizer.json``, and chat template and special tokens beside it.

The layout is that of published model folders (Hugging Face's): the template lies in ``chat_template.jinja`` or, as the
special tokens do, in ``tokenizer_config.json``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from contract.text.chat_template import ChatTemplate, ChatTemplateError

__all__ = ["TokenizerFileError", "TokenizerFiles", "read_tokenizer_files"]

_TOKENIZER, _CONFIG, _TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class TokenizerFileError(ValueError):
    """Files that make no tokenizer; the message names the file, in one line."""


@dataclass(frozen=True)
class TokenizerFiles:
    """What the files hold. Without a ``template`` there are texts and no conversations."""

    tokenizer: tokenizers.Tokenizer
    template: ChatTemplate | None


def read_tokenizer_files(path: Path) -> TokenizerFiles:
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
        raise TokenizerFileError(f"{file}: {' '.join(str(error).split())}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return TokenizerFiles(tokenizer, _template(file.parent))


def _template(folder: Path) -> ChatTemplate | None:
    config = _config(folder / _CONFIG)
    file = folder / _TEMPLATE
    try:
        source = file.read_text(encoding="utf-8") if file.is_file() else _default_template(config.get("chat_template"))
        return None if source is None else ChatTemplate(source, special_tokens=_special_tokens(config))
    except (OSError, UnicodeDecodeError, ChatTemplateError) as error:
        raise TokenizerFileError(f"{folder}: {error}") from None


def _config(file: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any]) if file.is_file() else {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TokenizerFileError(f"{file}: {error}") from None


def _default_template(template: object) -> str | None:
    """The template in a config; of several named ones, the default."""
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
