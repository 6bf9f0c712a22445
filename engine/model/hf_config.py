"""A Hugging Face folder's ``config.json`` as a ``ModelConfig``; what would be computed wrongly is refused by name.

Both spellings are read: of transformers 4 (``rope_theta``, ``rope_scaling``, ``torch_dtype``) and of transformers 5
(``rope_parameters``, ``dtype``). What a file leaves out has the value that transformers gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from engine.model.config import LinearRope, Llama3Rope, ModelConfig, ModelError, RopeScaling
from engine.model.hf_hybrid import HybridFields

__all__ = ["CONFIG_FILE", "read_hf_config"]

_FULL, _SLIDING = "full_attention", "sliding_attention"
CONFIG_FILE, GENERATION_FILE = "config.json", "generation_config.json"
_Shape = TypeVar("_Shape", bound=msgspec.Struct)
_Size = Annotated[int, msgspec.Meta(ge=1)]
_Layers = Annotated[int, msgspec.Meta(ge=1, le=4096)]  # none is so deep; lists of them are made before weights are seen
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Eos = int | list[int] | None


class _Rope(msgspec.Struct, kw_only=True):
    """``rope_parameters``, or the older ``rope_scaling``."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: _Positive | None = None
    partial_rotary_factor: float | None = None
    factor: _Positive | None = None
    low_freq_factor: _Positive | None = None
    high_freq_factor: _Positive | None = None
    original_max_position_embeddings: _Size | None = None


class _Kind(msgspec.Struct):
    """The one field that every ``config.json`` has; which others there are depends on it."""

    model_type: str


class _Config(msgspec.Struct, kw_only=True):
    """The fields of ``config.json`` that decide what is computed."""

    vocab_size: _Size
    hidden_size: _Size
    intermediate_size: _Size
    num_hidden_layers: _Layers
    num_attention_heads: _Size
    num_key_value_heads: _Size | None = None
    head_dim: _Size | None = None
    max_position_embeddings: _Size
    rms_norm_eps: Annotated[float, msgspec.Meta(ge=0)] | None = None
    hidden_act: str = "silu"
    rope_theta: _Positive | None = None
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: _Size | None = None
    use_sliding_window: bool | None = None
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    quantization_config: dict[str, Any] | None = None
    torch_dtype: str | None = None
    dtype: str | None = None
    eos_token_id: _Eos = None


class _Generation(msgspec.Struct):
    """The one field of ``generation_config.json`` that is heeded here."""

    eos_token_id: _Eos = None


class _Family(msgspec.Struct, frozen=True, kw_only=True):
    """How models of one ``model_type`` differ from Llama; None: ``attention_bias`` decides."""

    qkv_bias: bool | None = None
    out_bias: bool | None = None
    qk_norm: bool = False
    head_dim: int | None = None  # None: hidden_size / heads
    rms_eps: float = 1e-6
    rope_theta: float = 10_000.0
    hybrid: bool = False  # some layers have states
    windowed: bool = False  # use_sliding_window turns windows on, in layers from max_window_layers on


_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(),
    "mistral": _Family(qkv_bias=False, out_bias=False),
    "qwen2": _Family(qkv_bias=True, out_bias=False, windowed=True),
    "qwen3": _Family(qk_norm=True, head_dim=128, windowed=True),
    "minimax": _Family(qkv_bias=False, out_bias=False, rms_eps=1e-5, rope_theta=1_000_000.0, hybrid=True),
}


def read_hf_config(folder: Path) -> ModelConfig:
    """The model in ``folder``.

    Raises:
        ModelError: a file is missing or cannot be read, or the model is of a kind that is not served.
    """
    path = folder / CONFIG_FILE
    kind = _read(path, _Kind).model_type
    family = _FAMILIES.get(kind)
    if family is None:
        raise ModelError(f"{path}: model_type {kind!r} is not served, {', '.join(_FAMILIES)} are")
    config = _read(path, _Config)
    for complaint in _complaints(config, family):
        raise ModelError(f"{path}: {complaint}")
    try:
        model = _model(folder, config, family)
        return _read(path, HybridFields).completed(model) if family.hybrid else model
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def _model(folder: Path, config: _Config, family: _Family) -> ModelConfig:
    return ModelConfig(
        name=folder.name,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=_kv_heads(config),
        head_dim=_head_dim(config, family),
        max_context=config.max_position_embeddings,
        eos_token_ids=_eos(folder, config),
        rope_theta=_rope_theta(config, family),
        rope_scaling=_rope_scaling(_rope(config)),
        rms_eps=family.rms_eps if config.rms_norm_eps is None else config.rms_norm_eps,
        tied_embeddings=config.tie_word_embeddings,
        qkv_bias=config.attention_bias if family.qkv_bias is None else family.qkv_bias,
        out_bias=config.attention_bias if family.out_bias is None else family.out_bias,
        qk_norm=family.qk_norm,
        window=config.sliding_window,
        windowed_layers=_windowed_layers(config, family),
        dtype=config.dtype or config.torch_dtype or "float32",
    )


def _read(path: Path, shape: type[_Shape]) -> _Shape:
    try:
        return msgspec.json.decode(path.read_bytes(), type=shape)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: {error}") from None
    except RecursionError:
        raise ModelError(f"{path}: nested too deeply") from None


def _complaints(config: _Config, family: _Family) -> list[str]:
    """Everything about a model that this engine does not compute."""
    heads = config.num_attention_heads
    found = {
        f"hidden_act {config.hidden_act!r} is not served, silu is": config.hidden_act != "silu",
        "mlp_bias is not served": config.mlp_bias,
        "layer_types names sliding windows, sliding_window says no width": (
            _SLIDING in (config.layer_types or ()) and config.sliding_window is None
        ),
        f"quantization_config ({_quantization(config)}) is not served": config.quantization_config is not None,
        f"hidden_size {config.hidden_size} is not a multiple of {heads} attention heads and head_dim is not given": (
            (config.head_dim or family.head_dim) is None and config.hidden_size % heads != 0
        ),
        f"rotary positions for a part of each head (partial_rotary_factor {_rope(config).partial_rotary_factor}) are "
        "not served": _rope(config).partial_rotary_factor not in (None, 1.0),
    }
    return [complaint for complaint, applies in found.items() if applies]


def _kv_heads(config: _Config) -> int:
    return config.num_key_value_heads or config.num_attention_heads


def _head_dim(config: _Config, family: _Family) -> int:
    return config.head_dim or family.head_dim or config.hidden_size // config.num_attention_heads


def _windowed_layers(config: _Config, family: _Family) -> tuple[int, ...]:
    layers = range(config.num_hidden_layers)
    if config.layer_types is not None and not family.hybrid:
        return tuple(
            index for index, kind in zip(layers, _kinds(config.layer_types, layers), strict=True) if kind == _SLIDING
        )
    if config.sliding_window is None or (family.windowed and not config.use_sliding_window):
        return ()
    return tuple(layers[config.max_window_layers :]) if family.windowed else tuple(layers)


def _kinds(kinds: list[str], layers: range) -> list[str]:
    if len(kinds) != len(layers):
        raise ModelError(f"layer_types names {len(kinds)} layers, the model has {len(layers)}")
    for kind in kinds:
        if kind not in (_FULL, _SLIDING):
            raise ModelError(f"layers of type {kind!r} are not served, {_FULL} and {_SLIDING} are")
    return kinds


def _quantization(config: _Config) -> str:
    return str((config.quantization_config or {}).get("quant_method", "of no named method"))


def _rope(config: _Config) -> _Rope:
    return config.rope_parameters or config.rope_scaling or _Rope()


def _rope_theta(config: _Config, family: _Family) -> float:
    given = _rope(config).rope_theta or config.rope_theta
    return family.rope_theta if given is None else given


def _rope_scaling(rope: _Rope) -> RopeScaling | None:
    match rope.rope_type or rope.type or "default", rope:
        case "default", _:
            return None
        case "linear", _Rope(factor=float(factor)):
            return LinearRope(factor)
        case (
            "llama3",
            _Rope(
                factor=float(factor),
                low_freq_factor=float(low),
                high_freq_factor=float(high),
                original_max_position_embeddings=int(original),
            ),
        ):
            if low >= high:
                raise ModelError(f"rope type llama3 needs low_freq_factor below high_freq_factor, got {low} and {high}")
            return Llama3Rope(factor=factor, low_freq_factor=low, high_freq_factor=high, original_context=original)
        case "linear" | "llama3" as kind, _:
            raise ModelError(f"rope type {kind} lacks some of its numbers")
        case kind, _:
            raise ModelError(f"rope type {kind!r} is not served, default, linear and llama3 are")


def _eos(folder: Path, config: _Config) -> tuple[int, ...]:
    """``generation_config.json`` has the last word, for chat models often end an answer with another token."""
    generation = folder / GENERATION_FILE
    found = _read(generation, _Generation).eos_token_id if generation.is_file() else None
    if found is None:
        found = config.eos_token_id
    if found is None:
        return ()
    return (found,) if isinstance(found, int) else tuple(found)
