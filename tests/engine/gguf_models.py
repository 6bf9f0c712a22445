"""GGUF files for tests, written by the ``gguf`` package the way llama.cpp's converter does it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer
from torch import Tensor

from engine.model.config import ModelConfig

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    path: Path,
    architecture: str,
    model: ModelConfig,
    tensors: Mapping[str, Tensor],
    *,
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    rope_factors: Sequence[float] | None = None,
    linear_factor: float | None = None,
    tokenizer: Tokenizer | None = None,
    chat_template: str | None = None,
) -> None:
    """A file with these weights; ``kinds`` names the tensors that are quantized, by the end of their name."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(model.max_context)
    writer.add_embedding_length(model.hidden_size)
    writer.add_block_count(model.num_layers)
    writer.add_feed_forward_length(model.intermediate_size)
    writer.add_head_count(model.num_heads)
    writer.add_head_count_kv(model.num_kv_heads)
    writer.add_key_length(model.head_dim)
    writer.add_value_length(model.head_dim)
    writer.add_rope_dimension_count(model.head_dim)
    writer.add_rope_freq_base(model.rope_theta)
    writer.add_layer_norm_rms_eps(model.rms_eps)
    if linear_factor is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(linear_factor)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(rope_factors, dtype=np.float32))
    if tokenizer is None:
        writer.add_eos_token_id(2)
        writer.add_eot_token_id(5)
    else:
        add_tokenizer(writer, tokenizer, chat_template=chat_template)
    for name, tensor in tensors.items():
        values = tensor.float().numpy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            values = reordered(values, model.head_dim)
        add_tensor(writer, gguf_name(name), values, kinds or {})
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, published: Tokenizer, **values: Any) -> None:
    """``published`` as llama.cpp's converter writes it; ``values`` change that (None: left out)."""
    model = json.loads(published.to_str())["model"]
    vocabulary = sorted(model["vocab"], key=model["vocab"].__getitem__)
    control = {token for token, text in published.get_added_tokens_decoder().items() if text.special}
    usual = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": vocabulary,
        "merges": [" ".join(merge) for merge in model["merges"]],
        "token_type": [3 if index in control else 1 for index in range(len(vocabulary))],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    for key, value in (usual | values).items():
        name = f"tokenizer.{key}" if key == "chat_template" else f"tokenizer.ggml.{key}"
        match value:
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case str():
                writer.add_string(name, value)
            case list():
                writer.add_array(name, value)


def add_tensor(
    writer: gguf.GGUFWriter, name: str, values: np.ndarray, kinds: Mapping[str, gguf.GGMLQuantizationType]
) -> None:
    kind = next((kind for end, kind in kinds.items() if name.endswith(end)), None)
    if kind is None:
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)


def gguf_name(name: str) -> str:
    *place, kind = name.split(".")
    if place[:2] == ["model", "layers"]:
        return f"blk.{place[2]}.{NAMES['.'.join(place[3:])]}.{kind}"
    return f"{NAMES['.'.join(place)]}.{kind}"


def reordered(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """llama.cpp's order: dimension ``i`` of a head next to dimension ``i + head_dim / 2``."""
    heads = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2).reshape(rows.shape))
