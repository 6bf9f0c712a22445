"""SmolLM2-135M-Instruct for tests: where ``make model`` puts it, and what transformers computed with it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from bench.smollm2 import FOLDER, GGUF

GOLDEN = Path(__file__).parent.parent / "golden" / "smollm2.json"
needs_smollm2 = pytest.mark.skipif(not (GGUF.is_file() and FOLDER.is_dir()), reason="SmolLM2 is not here: make model")


class GoldenPrompt(msgspec.Struct):
    """What transformers 5.24 said to one prompt, float32: the whole prompt at once, then 32 greedy tokens."""

    prompt: str
    prompt_ids: list[int]
    last_top5_ids: list[int]
    last_top5_logits: list[float]
    last_logits_first16: list[float]
    last_logsumexp: float
    all_pos_argmax: list[int]
    greedy32_ids: list[int]
    greedy32_text: str


def golden_prompts() -> list[GoldenPrompt]:
    return msgspec.convert(json.loads(GOLDEN.read_text())["prompts"], list[GoldenPrompt])
