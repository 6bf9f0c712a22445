"""Request bodies: their fields, types and ranges. What does not fit is a 400 that names the field.

Fields nobody here knows are ignored, as OpenAI's, SGLang's and vLLM's servers ignore them; fields that would change the
answer and are not built are refused rather than ignored. Sources: the OpenAI API reference, SGLang 0.5.23, vLLM 0.33.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from contract.api_error import ApiError

__all__ = [
    "ChatBody",
    "CompletionBody",
    "DetokenizeBody",
    "GenerateBody",
    "GenerateSampling",
    "GeneratingBody",
    "OpenAIBody",
    "Prompt",
    "TokenizeBody",
]

_MAX_STOPS, _MAX_STOP_CHARS = 16, 256

Prompt = str | Sequence[str | int | list[int]]
"""One text, several texts, one list of token ids, or several; which of them is checked later."""

_Messages = Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
"""A conversation; what a message may hold is the tokenizer's to say."""

_TemplateArguments = dict[str, Any] | None
"""Variables for the model's chat template."""

_Stop = Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_STOP_CHARS)]
_Stops = _Stop | Annotated[list[_Stop], msgspec.Meta(max_length=_MAX_STOPS)] | None
_StopIds = Annotated[list[int], msgspec.Meta(max_length=_MAX_STOPS)] | None
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Rank = Annotated[int, msgspec.Meta(ge=0)]
_Temperature = Annotated[float, msgspec.Meta(ge=0)]
_TopP = Annotated[float, msgspec.Meta(gt=0, le=1)]
_TopK = Annotated[int, msgspec.Meta(ge=-1)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_NameOrNames = _Name | list[_Name] | None
_Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Checked(msgspec.Struct, kw_only=True):
    """A body that knows which of its fields only take their neutral values."""

    neutral: ClassVar[dict[str, tuple[object, ...]]] = {}

    def __post_init__(self) -> None:
        for name, allowed in self.neutral.items():
            value = getattr(self, name)
            if value is not None and value not in allowed:
                raise ApiError(f"{name} {value!r:.60} is not supported", param=name, code="unsupported_value")


class GeneratingBody(_Checked, kw_only=True):
    """What steers a request inside the engine, in any body that generates."""

    rid: _NameOrNames = None
    cache_salt: _NameOrNames = None
    extra_key: _NameOrNames = None
    routed_dp_rank: _Rank | None = None
    data_parallel_rank: _Rank | None = None
    stream: bool | None = None

    @property
    def pinned_rank(self) -> int | None:
        """The rank the body asks for, under either of SGLang's names."""
        return self.data_parallel_rank if self.routed_dp_rank is None else self.routed_dp_rank


class StreamOptions(msgspec.Struct, kw_only=True):
    """OpenAI's ``stream_options``."""

    include_usage: bool | None = None


class OpenAIBody(GeneratingBody, kw_only=True):
    """Fields that completions and chat completions share."""

    model: str | None = None
    max_tokens: _Count | None = None
    temperature: _Temperature | None = None
    top_p: _TopP | None = None
    top_k: _TopK | None = None
    seed: _Seed | None = None
    stop: _Stops = None
    stop_token_ids: _StopIds = None
    ignore_eos: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | int | None = None
    lora_path: str | None = None

    neutral = {
        "n": (1,),
        "frequency_penalty": (0.0,),
        "presence_penalty": (0.0,),
        "repetition_penalty": (1.0,),
        "min_p": (0.0,),
        "min_tokens": (0,),
        "logit_bias": ({},),
        "lora_path": ("",),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.logprobs is not None and self.logprobs is not False:
            raise ApiError("logprobs are not supported", param="logprobs", code="unsupported_value")

    @property
    def wants_usage_chunk(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionBody(OpenAIBody, kw_only=True):
    """``POST /v1/completions``."""

    prompt: Prompt
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None

    neutral = OpenAIBody.neutral | {"best_of": (1,), "echo": (False,), "suffix": ("",)}


class ChatBody(OpenAIBody, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: _Messages
    max_completion_tokens: _Count | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: _TemplateArguments = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None

    neutral = OpenAIBody.neutral | {
        "top_logprobs": (0,),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "tools": ([],),
        "functions": ([],),
        "response_format": ({"type": "text"},),
    }


class GenerateSampling(_Checked, kw_only=True):
    """SGLang's ``sampling_params``."""

    max_new_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    temperature: _Temperature | None = None
    top_p: _TopP | None = None
    top_k: _TopK | None = None
    sampling_seed: _Seed | None = None
    stop: _Stops = None
    stop_token_ids: _StopIds = None
    ignore_eos: bool | None = None
    n: int | None = None
    min_p: float | None = None
    min_new_tokens: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None

    neutral = {
        "n": (1,),
        "min_p": (0.0,),
        "min_new_tokens": (0,),
        "frequency_penalty": (0.0,),
        "presence_penalty": (0.0,),
        "repetition_penalty": (1.0,),
        "json_schema": (),
        "regex": (),
        "ebnf": (),
    }


class GenerateBody(GeneratingBody, kw_only=True):
    """``POST /generate``: exactly one of ``text`` and ``input_ids``; a list of prompts is a batch."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: GenerateSampling | list[GenerateSampling] | None = None
    return_logprob: bool | None = None
    lora_path: str | None = None

    neutral = {"return_logprob": (False,), "lora_path": ("",)}


class TokenizeBody(_Checked, kw_only=True):
    """``POST /tokenize``: one of ``prompt`` (``text`` means the same) and ``messages``."""

    model: str | None = None
    prompt: str | None = None
    text: str | None = None
    messages: _Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: _TemplateArguments = None
    tools: list[Any] | None = None

    neutral = {"tools": ([],)}


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """``POST /detokenize``."""

    tokens: list[int]
    model: str | None = None
