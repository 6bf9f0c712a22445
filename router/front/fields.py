"""The fields of a request's body that a router looks at, as they are in JSON. What they mean is said elsewhere.

A body of the usual kind, one prompt of text or of token ids in range, is decoded in one pass over its bytes. Everything
else is decoded with its prompt left as JSON, to be judged piece by piece.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any

import msgspec

from router.front.errors import invalid

__all__ = ["MAX_TOKEN_ID", "Fields", "RawFields", "UsualFields", "decode_fields", "decode_usual"]

MAX_TOKEN_ID = 2**31 - 1
"""Engines hold ids as signed 32-bit numbers at least; no vocabulary comes near."""

MAX_DECODERS = 16
"""One for each size of vocabulary; fleets have few."""

_ABSENT = msgspec.Raw()


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Fields(msgspec.Struct):
    """What bodies of every kind may hold beside their prompt. UNSET: it is not there, not even as null."""

    model: str | None = None
    messages: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    chat_template_kwargs: msgspec.Raw = _ABSENT
    stream: bool | None = None
    stream_options: _StreamOptions | msgspec.UnsetType | None = msgspec.UNSET
    session_id: Any = None
    add_special_tokens: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None
    chat_template: Any = None
    documents: Any = None
    truncate_prompt_tokens: Any = None
    echo: Any = None
    suffix: Any = None
    cache_salt: Any = None
    extra_key: Any = None
    lora_path: Any = None
    routed_dp_rank: Any = msgspec.UNSET
    data_parallel_rank: Any = None


class RawFields(Fields):
    """Prompts of any shape, as JSON; empty where there is none."""

    prompt: msgspec.Raw = _ABSENT
    text: msgspec.Raw = _ABSENT
    input_ids: msgspec.Raw = _ABSENT


class UsualFields(Fields):
    """One prompt of text or token ids."""

    prompt: str | list[int] | None = None
    text: str | None = None
    input_ids: list[int] | None = None


_RAW = msgspec.json.Decoder(RawFields)


def decode_fields(body: bytes) -> RawFields:
    """Decode any body.

    Raises:
        ApiError: 400, not JSON, or a field of another type than it has.
    """
    try:
        return _RAW.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(f"request body: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"the body is not JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise invalid("the body is not JSON that can be read: nested too deeply", code="invalid_json") from None


def decode_usual(body: bytes, *, ids_below: int) -> UsualFields | None:
    """Decode a body of the usual kind whose ids are all in [0, ``ids_below``); None for every other."""
    try:
        return _usual_decoder(ids_below).decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


@functools.lru_cache(MAX_DECODERS)
def _usual_decoder(ids_below: int) -> msgspec.json.Decoder[UsualFields]:
    """The range is checked while the ids are read, which costs nothing."""
    ids: Any = list.__class_getitem__(Annotated[int, msgspec.Meta(ge=0, lt=ids_below)])
    kind = msgspec.defstruct(
        "UsualFields", [("prompt", str | ids | None, None), ("input_ids", ids | None, None)], bases=(UsualFields,)
    )
    return msgspec.json.Decoder(kind)
