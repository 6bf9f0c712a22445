"""What an engine reports of its own cache in an answer: OpenAI's ``usage``, SGLang's ``meta_info``. Pure."""

from __future__ import annotations

import msgspec

__all__ = ["Report", "is_bare_usage", "read_report"]


class Report(msgspec.Struct, frozen=True):
    """Prompt tokens as the engine counted them, those it found in its cache, and those of the answer.

    None: it did not say.
    """

    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _MetaInfo(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None
    meta_info: _MetaInfo | None = None
    choices: list[msgspec.Raw] | None = None


_DECODER = msgspec.json.Decoder(_Answer)


def read_report(answer: bytes | bytearray) -> Report | None:
    """The report in one JSON answer, or in one event of a stream; None where there is none that can be read."""
    decoded = _decode(answer)
    return None if decoded is None else _report(decoded)


def is_bare_usage(event: bytes) -> bool:
    """Whether a stream's event carries token counts and nothing else: what ``include_usage`` adds."""
    decoded = _decode(event)
    return decoded is not None and decoded.usage is not None and decoded.choices == []


def _decode(answer: bytes | bytearray) -> _Answer | None:
    try:
        return _DECODER.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _report(answer: _Answer) -> Report | None:
    meta, usage = answer.meta_info, answer.usage
    if meta is not None and meta.prompt_tokens is not None:
        return Report(meta.prompt_tokens, meta.cached_tokens, meta.completion_tokens)
    if usage is not None and usage.prompt_tokens is not None:
        details = usage.prompt_tokens_details
        cached = None if details is None else details.cached_tokens
        return Report(usage.prompt_tokens, cached, usage.completion_tokens)
    return None
