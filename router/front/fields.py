"""The fields of a request's body that a router looks at, as they are in JSON. What they mean is said elsewhere.

Prompts are left as JSON: what they hold is most of a body, and how it is best read depends on what it is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from router.front.errors import invalid

__all__ = ["MAX_TOKEN_ID", "Fields", "RawFields", "decode_fields"]

MAX_TOKEN_ID = 2**31 - 1
"""Engines hold ids as signed 32-bit numbers at least; no vocabulary comes near."""

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
