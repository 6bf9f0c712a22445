"""The shape of a Llama-like model, as numbers. Knows nothing of torch: servers and simulations read it too."""

from __future__ import annotations

import msgspec

from engine.model.byte_tokenizer import ByteTokenizer

__all__ = ["TINY", "ModelConfig"]


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and constants of a decoder with RMSNorm, rotary positions, grouped queries, SwiGLU and tied embeddings.

    ``num_heads`` query heads share ``num_kv_heads`` key/value heads in contiguous runs. ``max_context`` counts tokens,
    prompt and answer together.
    """

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    rope_theta: float = 10_000.0
    rms_eps: float = 1e-5
    seed: int = 0


TINY = ModelConfig(
    name="tiny",
    vocab_size=ByteTokenizer.vocab_size,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_context=16_384,
    eos_token_ids=ByteTokenizer.eos_token_ids,
)
