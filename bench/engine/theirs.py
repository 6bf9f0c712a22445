"""The same model on transformers: a forward pass over the prompts, then one a token, with its own KV cache.

This is what its ``generate`` does, without what that costs around the passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from bench.engine.timing import Clock, Timing

__all__ = ["Theirs"]


class Theirs:
    """On the CPU, in float32, with transformers' default attention; the model is in ``folder``."""

    name = "transformers"

    def __init__(self, folder: Path, *, clock: Clock) -> None:
        self._clock = clock
        transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def play(self, prompts: Sequence[Sequence[int]], *, new_tokens: int) -> Timing:
        """Answer ``prompts`` as `Subject` says."""
        with torch.inference_mode():
            started = self._clock()
            ids = torch.tensor([list(prompt) for prompt in prompts])
            output = self._model(ids, use_cache=True, logits_to_keep=1)
            tokens = output.logits[:, -1].argmax(-1, keepdim=True)
            tokens.tolist()
            first = self._clock()
            for _ in range(new_tokens - 1):
                output = self._model(tokens, cache=output.cache, use_cache=True)
                tokens = output.logits[:, -1].argmax(-1, keepdim=True)
                tokens.tolist()  # whoever answers clients needs every token, as it comes
            return Timing(prefill=first - started, decode=self._clock() - first)
