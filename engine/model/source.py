"""Where a model's weights are. Values only: a rank in another process can be handed a source, and opens it there."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.model.config import ModelConfig

__all__ = ["ModelSource"]


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """A model and its weights: ``drawn`` from a seed, in a ``folder`` of safetensors, or in a ``gguf`` file.

    ``path`` is where they are, absolute; empty where they are drawn.
    """

    config: ModelConfig
    kind: Literal["drawn", "folder", "gguf"] = "drawn"
    path: str = ""
