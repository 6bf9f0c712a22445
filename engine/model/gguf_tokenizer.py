"""The tokenizer that a GGUF file carries, rebuilt: byte-level BPE with the pre-tokenizer that the file names.

The rules behind the names are llama.cpp's (``tokenizer.ggml.pre``). The name matters: with another pre-tokenizer most
texts still look right, and get other ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from contract.text.chat_template import ChatTemplate, ChatTemplateError
from engine.model.config import ModelError
from engine.model.gguf_file import GgufFile
from engine.model.text_tokenizer import TextTokenizer

__all__ = ["build_tokenizer", "chat_template", "read_gguf_tokenizer", "special_tokens"]

_KEYS = "tokenizer.ggml."
_CONTROL, _USER_DEFINED = 3, 4
_NAMED_TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(digits: str) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(Regex(_WORDS % digits), "isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_PRE_TOKENIZERS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": _gpt2,
    "smollm": _digits_then_gpt2,
    "llama-bpe": lambda: _split("{1,3}"),
    "qwen2": lambda: _split(""),
}


def read_gguf_tokenizer(file: GgufFile, *, vocab_size: int) -> TextTokenizer:
    """The tokenizer in ``file``, for a model of so many ids. A file without a chat template serves no chats.

    Raises:
        ModelError: it is missing, or of a kind that is not served.
    """
    tokenizer, source = build_tokenizer(file), chat_template(file)
    try:
        template = None if source is None else ChatTemplate(source, special_tokens=special_tokens(file))
    except ChatTemplateError as error:
        raise ModelError(f"{file.path}: {error}") from None
    return TextTokenizer(tokenizer, template, name=str(file.path), vocab_size=vocab_size)


def build_tokenizer(file: GgufFile) -> tokenizers.Tokenizer:
    """What ``tokenizers`` needs of the file, put together.

    Raises:
        ModelError: as ``read_gguf_tokenizer``.
    """
    kind, pre = _get(file, "model", "nothing"), _get(file, "pre", "default")
    if kind != "gpt2":
        raise ModelError(f"{file.path}: tokenizer {kind!r} is not served, gpt2 (byte-level BPE) is")
    if pre not in _PRE_TOKENIZERS:
        raise ModelError(f"{file.path}: pre-tokenizer {pre!r} is not served, {', '.join(_PRE_TOKENIZERS)} are")
    try:
        return _byte_level_bpe(file, pre)
    except Exception as error:  # the library raises bare Exception for merges that do not fit
        complaint = " ".join(str(error).split())
        raise ModelError(f"{file.path}: its vocabulary makes no tokenizer: {complaint}") from None


def chat_template(file: GgufFile) -> str | None:
    """The source of the file's chat template."""
    source = file.metadata.get("tokenizer.chat_template")
    return source if isinstance(source, str) else None


def special_tokens(file: GgufFile) -> dict[str, str]:
    """Hugging Face's names of the tokens that a template may use, to their texts."""
    tokens, found = _tokens(file), {}
    for name, key in _NAMED_TOKENS.items():
        index = _get(file, f"{key}_token_id", None)
        if isinstance(index, int) and index < len(tokens):
            found[name] = tokens[index]
    return found


def _byte_level_bpe(file: GgufFile, pre: str) -> tokenizers.Tokenizer:
    tokens = _tokens(file)
    merges = [tuple(merge.split(" ", 1)) for merge in _get(file, "merges", [])]
    whole_words = pre == "llama-bpe"  # a word that is a token is not built from merges
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole_words))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    types = _get(file, "token_type", [])
    tokenizer.add_special_tokens(_added(tokens, types, _CONTROL))
    tokenizer.add_tokens(_added(tokens, types, _USER_DEFINED))
    _add_bos(file, tokenizer)
    return tokenizer


def _tokens(file: GgufFile) -> list[str]:
    tokens: list[str] = _get(file, "tokens", [])
    return tokens


def _added(tokens: list[str], types: list[int], kind: int) -> list[AddedToken]:
    """Tokens that stand for themselves in any text."""
    return [
        AddedToken(token, normalized=False, special=kind == _CONTROL)
        for token, found in zip(tokens, types, strict=False)
        if found == kind
    ]


def _add_bos(file: GgufFile, tokenizer: tokenizers.Tokenizer) -> None:
    """Put the first token before every prompt, where the file says so."""
    bos = _get(file, "bos_token_id", None)
    if bos is not None and _get(file, "add_bos_token", False):
        text = _tokens(file)[bos]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{text} $A", special_tokens=[(text, bos)])


def _get(file: GgufFile, key: str, default: Any) -> Any:
    return file.metadata.get(_KEYS + key, default)
