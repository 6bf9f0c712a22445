"""Writes a GGUF file's model as a Hugging Face folder: the same weights in float32, which load without arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from engine.model.config import LinearRope, ModelConfig, ModelError
from engine.model.gguf_checkpoint import GgufCheckpoint
from engine.model.gguf_config import read_gguf_config
from engine.model.gguf_file import GgufFile
from engine.model.gguf_tokenizer import build_tokenizer, chat_template, special_tokens

__all__ = ["export_folder"]


def export_folder(path: Path, folder: Path) -> None:
    """Write config, tokenizer, chat template and weights of the file at ``path`` into ``folder``, which must be there.

    Raises:
        ModelError: the file cannot be read, or says something that ``config.json`` has no form for.
    """
    file = GgufFile(path)
    model = read_gguf_config(file)
    _write(folder / "config.json", _config(file, model))
    _write(folder / "generation_config.json", {"eos_token_id": list(model.eos_token_ids)})
    _write(folder / "tokenizer_config.json", _tokenizer_config(file, model))
    build_tokenizer(file).save(str(folder / "tokenizer.json"))
    checkpoint = GgufCheckpoint(path, head_dim=model.head_dim)
    tensors = {name: checkpoint.read(name, shape=checkpoint.shape(name)) for name in checkpoint.names}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _config(file: GgufFile, model: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": [_CLASSES[file.metadata["general.architecture"]]],
        "model_type": file.metadata["general.architecture"],
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.max_context,
        "rms_norm_eps": model.rms_eps,
        "rope_theta": model.rope_theta,
        "rope_scaling": _rope_scaling(file, model),
        "tie_word_embeddings": model.tied_embeddings,
        "attention_bias": model.qkv_bias,
        "hidden_act": "silu",
        "eos_token_id": list(model.eos_token_ids),
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "torch_dtype": "float32",
    }


_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def _rope_scaling(file: GgufFile, model: ModelConfig) -> dict[str, Any] | None:
    match model.rope_scaling:
        case None:
            return None
        case LinearRope(factor):
            return {"rope_type": "linear", "factor": factor}
        case _:
            raise ModelError(f"{file.path}: config.json has no form for listed rotary factors")


def _tokenizer_config(file: GgufFile, model: ModelConfig) -> dict[str, Any]:
    return special_tokens(file) | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.max_context,
        "clean_up_tokenization_spaces": False,
        "chat_template": chat_template(file),
    }


def _write(path: Path, fields: dict[str, Any]) -> None:
    given = {name: value for name, value in fields.items() if value is not None}
    path.write_text(json.dumps(given, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
