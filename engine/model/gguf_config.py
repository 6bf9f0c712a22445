"""A GGUF file's header as a ``ModelConfig``, and Hugging Face's names for its tensors.

llama.cpp turns pairs of neighbouring dimensions, Hugging Face dimension ``i`` with ``i + head_dim / 2``. Its converter
therefore reorders the rows of queries and keys in files of architecture ``llama``; the Qwen ones are left as they are.
What metadata does not say (biases, norms of heads, tied embeddings) shows in which tensors there are.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec

from engine.model.config import LinearRope, ListedRope, ModelConfig, ModelError, RopeScaling
from engine.model.gguf_file import GgufFile

__all__ = ["ROPE_FACTORS", "hf_name", "read_gguf_config", "reorders_heads"]

ROPE_FACTORS = "rope_freqs.weight"
"""A tensor that lists how many times slower each dimension turns (Llama 3.1 and later)."""

_T = TypeVar("_T")
_FLOAT32 = 0  # ggml's number for it
_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_name(name: str) -> str:
    """Hugging Face's name of a tensor; one that is not known stays as it is."""
    match name.split("."):
        case ["blk", layer, part, kind] if part in _INNER:
            return f"model.layers.{layer}.{_INNER[part]}.{kind}"
        case _:
            return _OUTER.get(name, name)


def reorders_heads(file: GgufFile) -> bool:
    """Whether the rows of queries and keys stand in llama.cpp's order."""
    return file.metadata.get("general.architecture") == "llama"


def read_gguf_config(file: GgufFile) -> ModelConfig:
    """The model in ``file``.

    Raises:
        ModelError: metadata is missing or odd, or the model is of a kind that is not served.
    """
    try:
        return _model(file, _Metadata(file))
    except ModelError as error:
        raise ModelError(f"{file.path}: {error}") from None


def _model(file: GgufFile, meta: _Metadata) -> ModelConfig:
    heads, hidden = meta.size("attention.head_count"), meta.size("embedding_length")
    head_dim = meta.size("attention.key_length", default=hidden // heads)
    meta.demand("attention.value_length", head_dim, default=head_dim)
    meta.demand("rope.dimension_count", head_dim, default=head_dim)
    meta.demand("expert_count", 0, default=0)
    meta.demand("attention.sliding_window", 0, default=0)
    tensors = file.tensors
    if "token_embd.weight" not in tensors:
        raise ModelError("tensor token_embd.weight is missing")
    return ModelConfig(
        name=file.path.name,
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=hidden,
        intermediate_size=meta.size("feed_forward_length"),
        num_layers=meta.size("block_count"),
        num_heads=heads,
        num_kv_heads=meta.size("attention.head_count_kv", default=heads),
        head_dim=head_dim,
        max_context=meta.size("context_length"),
        eos_token_ids=_eos(file),
        rope_theta=meta.get("rope.freq_base", float, default=10_000.0),
        rope_scaling=_rope_scaling(meta, file, head_dim),
        rms_eps=meta.get("attention.layer_norm_rms_epsilon", float),
        tied_embeddings="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        out_bias="blk.0.attn_output.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        dtype="bfloat16",
    )


class _Metadata:
    """The values that a file has under its architecture's name."""

    def __init__(self, file: GgufFile) -> None:
        self._values = file.metadata
        self._prefix = str(file.metadata.get("general.architecture"))
        if self._prefix not in _ARCHITECTURES:
            raise ModelError(f"architecture {self._prefix!r} is not served, {', '.join(_ARCHITECTURES)} are")

    def get(self, key: str, kind: type[_T], *, default: _T | None = None) -> _T:
        """One value of that type; a ``default`` makes it optional."""
        name = f"{self._prefix}.{key}"
        found = self._values.get(name, default)
        if found is None:
            raise ModelError(f"{name} is missing")
        try:
            return msgspec.convert(found, kind)
        except msgspec.ValidationError as error:
            raise ModelError(f"{name}: {error}") from None

    def size(self, key: str, *, default: int | None = None) -> int:
        """A number of at least 1."""
        found = self.get(key, int, default=default)
        if found < 1:
            raise ModelError(f"{self._prefix}.{key} must be at least 1, got {found}")
        return found

    def demand(self, key: str, served: _T, *, default: _T) -> None:
        """Refuse a file in which the value is another one."""
        found = self.get(key, type(served), default=default)
        if found != served:
            raise ModelError(f"{self._prefix}.{key} {found} is not served, {served} is")


def _rope_scaling(meta: _Metadata, file: GgufFile, head_dim: int) -> RopeScaling | None:
    kind = meta.get("rope.scaling.type", str, default="none")
    if kind not in ("none", "linear"):
        raise ModelError(f"rope type {kind!r} is not served, none and linear are")
    factors = file.tensors.get(ROPE_FACTORS)
    if factors is None:
        return LinearRope(meta.get("rope.scaling.factor", float)) if kind == "linear" else None
    if kind != "none" or factors.type != _FLOAT32 or factors.shape != (head_dim // 2,):
        raise ModelError(f"{ROPE_FACTORS} of shape {list(factors.shape)} beside rope type {kind!r} cannot be read")
    return ListedRope(struct.unpack_from(f"<{head_dim // 2}f", file.bytes, factors.start))


def _eos(file: GgufFile) -> tuple[int, ...]:
    """Where a text ends, and where a turn does."""
    found = (file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot"))
    return tuple(dict.fromkeys(token for token in found if isinstance(token, int)))
