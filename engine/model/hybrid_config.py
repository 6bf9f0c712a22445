"""The shape of a hybrid model, as numbers: MiniMax's, as transformers 5.24 computes it (``minimax``).

Knows nothing of torch.
"""

from __future__ import annotations

import msgspec

from engine.model.config import TINY, ModelConfig

__all__ = ["TINY_HYBRID", "HybridConfig", "Residual"]


class Residual(msgspec.Struct, frozen=True):
    """Behind half a layer: ``kept`` times the normed states that went in, plus ``added`` times what it made of them."""

    kept: float = 1.0
    added: float = 1.0


class HybridConfig(ModelConfig, frozen=True, kw_only=True):
    """A decoder in which ``linear_layers`` (indices) have linear attention and the others full attention.

    Linear layers have ``num_heads`` heads of ``head_dim`` for keys and values alike, whose decay follows from head and
    layer. Every layer's MLP is a choice of ``experts_per_token`` among ``num_experts``.
    """

    linear_layers: tuple[int, ...]
    num_experts: int = 1
    experts_per_token: int = 1
    full_residual: Residual = Residual()
    linear_residual: Residual = Residual()
    mlp_residual: Residual = Residual()

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Indices of the layers with full attention."""
        return tuple(index for index in range(self.num_layers) if index not in self.linear_layers)


TINY_HYBRID = HybridConfig(
    name="tiny-hybrid",
    vocab_size=TINY.vocab_size,
    hidden_size=TINY.hidden_size,
    intermediate_size=TINY.intermediate_size,
    num_layers=3,
    num_heads=TINY.num_heads,
    num_kv_heads=TINY.num_kv_heads,
    head_dim=TINY.head_dim,
    max_context=TINY.max_context,
    eos_token_ids=TINY.eos_token_ids,
    linear_layers=(0, 2),
)
