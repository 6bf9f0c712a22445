"""Which number format a model is computed in."""

from __future__ import annotations

import torch

__all__ = ["resolve_dtype"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_dtype(name: str, *, device: torch.device, kept: str) -> torch.dtype:
    """The dtype that ``--dtype`` names; ``auto`` is float32 on a CPU, elsewhere what the weights are ``kept`` in."""
    if name == "auto":
        name = "float32" if device.type == "cpu" else kept
    return _DTYPES[name]
