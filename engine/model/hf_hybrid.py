"""The part of a hybrid's ``config.json`` that other models do not have (``minimax``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from engine.model.config import ModelConfig, ModelError
from engine.model.hybrid_config import HybridConfig, Residual

__all__ = ["HybridFields"]

_FULL, _LINEAR = "full_attention", "linear_attention"
_Size = Annotated[int, msgspec.Meta(ge=1)]


class HybridFields(msgspec.Struct, kw_only=True):
    """What a file leaves out has the value that transformers gives it."""

    layer_types: list[str] | None = None
    num_local_experts: _Size = 8
    num_experts_per_tok: _Size = 2
    full_attn_alpha_factor: float = 1.0
    full_attn_beta_factor: float = 1.0
    linear_attn_alpha_factor: float = 1.0
    linear_attn_beta_factor: float = 1.0
    mlp_alpha_factor: float = 1.0
    mlp_beta_factor: float = 1.0

    def completed(self, model: ModelConfig) -> HybridConfig:
        """The whole config, ``model`` being what every model has.

        Raises:
            ModelError: fields that contradict each other, or layers of a kind that is not served.
        """
        if self.num_experts_per_tok > self.num_local_experts:
            raise ModelError(f"{self.num_experts_per_tok} experts a token are more than {self.num_local_experts}")
        return HybridConfig(
            **msgspec.structs.asdict(model),
            linear_layers=tuple(index for index, kind in enumerate(self._kinds(model)) if kind == _LINEAR),
            num_experts=self.num_local_experts,
            experts_per_token=self.num_experts_per_tok,
            full_residual=Residual(self.full_attn_alpha_factor, self.full_attn_beta_factor),
            linear_residual=Residual(self.linear_attn_alpha_factor, self.linear_attn_beta_factor),
            mlp_residual=Residual(self.mlp_alpha_factor, self.mlp_beta_factor),
        )

    def _kinds(self, model: ModelConfig) -> list[str]:
        if self.layer_types is None:
            return [_LINEAR if index % 2 else _FULL for index in range(model.num_layers)]
        if len(self.layer_types) != model.num_layers:
            raise ModelError(f"layer_types names {len(self.layer_types)} layers, the model has {model.num_layers}")
        for kind in self.layer_types:
            if kind not in (_FULL, _LINEAR):
                raise ModelError(f"layers of type {kind!r} are not served, {_FULL} and {_LINEAR} are")
        return self.layer_types
