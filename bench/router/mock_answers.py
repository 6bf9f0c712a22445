"""What a mock worker says over HTTP, in vLLM 0.33's words: a few tokens of nothing, and true usage. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from bench.router.mock_cache import BLOCK_WIDTH

__all__ = ["MODEL", "Asked", "Counts", "about", "completion", "completion_parts", "metrics", "rendered", "tokenized"]

MODEL = "mock"
VERSION = "0.33.0"
_MAX_LENGTH = 131_072
_MAX_ANSWER = 1024
_TOKEN = " bobo"
_DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.encode


class Asked(msgspec.Struct):
    """A request for an answer; other fields, of which routers add some, are passed over."""

    prompt: str | list[int]
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=_MAX_ANSWER)] = 16
    stream: bool = False


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer reports of its prompt, and which worker gave it."""

    worker: str
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int


def completion(counts: Counts) -> bytes:
    """A whole answer."""
    return _encode({**_frame(_TOKEN * counts.new_tokens, end=True, counts=counts), "usage": _usage(counts)})


def completion_parts(counts: Counts) -> list[bytes]:
    """A streamed one: an event a token, then usage, then the end."""
    tokens = [_event(_frame(_TOKEN, end=False, counts=counts))] * (counts.new_tokens - 1)
    last = _event(_frame(_TOKEN, end=True, counts=counts))
    usage = _event({**_frame("", end=True, counts=counts), "choices": [], "usage": _usage(counts)})
    return [*tokens, last, usage, _DONE]


def _frame(text: str, *, end: bool, counts: Counts) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "length" if end else None}
    return {
        "id": "cmpl-0",
        "object": "text_completion",
        "created": 0,
        "model": MODEL,
        "choices": [choice],
        "system_fingerprint": counts.worker,
    }


def _usage(counts: Counts) -> dict[str, Any]:
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.new_tokens,
        "total_tokens": counts.prompt_tokens + counts.new_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.cached_tokens},
    }


def _event(value: object) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"


def tokenized(ids: Sequence[int]) -> bytes:
    """``/tokenize``."""
    return _encode({"count": len(ids), "max_model_len": _MAX_LENGTH, "tokens": ids})


def rendered(ids: Sequence[int]) -> bytes:
    """``/v1/completions/render``: what the engine would be given."""
    return _encode([{"request_id": "cmpl-0", "token_ids": ids, "sampling_params": {}, "model": MODEL}])


def metrics() -> bytes:
    """``/metrics``, as far as routers read it."""
    return b'vllm:cache_config_info{block_size="%d",engine="0"} 1.0\n' % BLOCK_WIDTH


def about(*, tokenizer: str, endpoint: str, replay_endpoint: str | None) -> dict[str, bytes]:
    """Answers that stay the same, by path. ``tokenizer`` is the folder it is in."""
    source = {"publisher": "zmq", "endpoint": endpoint, "replay_endpoint": replay_endpoint, "topic": ""}
    model = {"id": MODEL, "object": "model", "owned_by": "mock", "root": tokenizer, "max_model_len": _MAX_LENGTH}
    return {
        "/health": b"",
        "/version": _encode({"version": VERSION}),
        "/v1/models": _encode({"object": "list", "data": [model]}),
        "/kv_event_sources": _encode({"0": source}),
        "/metrics": metrics(),
    }
