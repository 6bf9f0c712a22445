"""Small random models of transformers, saved as the folders that it publishes, and their logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import (
    LlamaConfig,
    MiniMaxConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

VOCAB = 61
# 12 heads over 6 KV heads divide over 1, 2 and 3 groups; head_dim is not hidden_size / heads; 50 divides by no group.
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "num_key_value_heads": 6,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0}
LINEAR_LAYER, FULL_LAYER = "linear_attention", "full_attention"
HYBRID = {
    "initializer_range": 0.15,  # states add up: larger weights make rounding errors large too
    "intermediate_size": 52,  # whole vectors of 16 bytes, which the experts of transformers need
    "num_hidden_layers": 4,
    "layer_types": [LINEAR_LAYER, FULL_LAYER, LINEAR_LAYER, LINEAR_LAYER],
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "block_size": 16,
    "full_attn_alpha_factor": 1.2,
    "full_attn_beta_factor": 0.9,
    "linear_attn_alpha_factor": 0.8,
    "linear_attn_beta_factor": 1.3,
    "mlp_alpha_factor": 1.1,
    "mlp_beta_factor": 0.7,
}
CONFIGS: dict[str, Callable[..., PretrainedConfig]] = {
    "llama": lambda **more: LlamaConfig(**SIZES | more),
    "llama-tied-bias-linear": lambda **more: LlamaConfig(
        **SIZES | {"tie_word_embeddings": True, "attention_bias": True, "rope_parameters": LINEAR} | more
    ),
    "llama-llama3": lambda **more: LlamaConfig(**SIZES | {"rope_parameters": LLAMA3} | more),
    "minimax": lambda **more: MiniMaxConfig(**SIZES | HYBRID | more),
    "mistral": lambda **more: MistralConfig(**SIZES | {"sliding_window": 80} | more),
    "qwen2": lambda **more: Qwen2Config(**SIZES | more),
    "qwen3": lambda **more: Qwen3Config(**SIZES | {"tie_word_embeddings": True} | more),
}


@dataclass(frozen=True)
class SavedModel:
    """A folder, and the model of transformers that was saved in it."""

    folder: Path
    model: PreTrainedModel

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """``[tokens, vocab]``: row ``i`` is about the token after ``tokens[i]``."""
        with torch.inference_mode():
            return self.model(torch.tensor([list(tokens)])).logits[0]


def save_random_model(folder: Path, kind: str, *, seed: int = 0, shard_size: str = "1GB", **more: Any) -> SavedModel:
    """A model of ``kind`` with random weights, biases and norms included."""
    torch.manual_seed(seed)
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[kind](**more), dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return SavedModel(folder, model)
