"""Narrow number formats: weights and cache in half the memory, logits as near to float32 as transformers' are."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from chunked_engine import ChunkedEngine
from hf_models import VOCAB, save_random_model

from contract.geometry import Geometry
from engine.model.dtype import resolve_dtype
from engine.model.hf_config import read_hf_config
from engine.model.source import ModelSource
from engine.parallel.layout import Layout

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["llama-tied-bias-linear", "qwen3"])
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_rounding_errors_are_of_the_size_of_transformers(kind: str, name: str, tmp_path: Path) -> None:
    saved, dtype = save_random_model(tmp_path, kind), resolve_dtype(name, device=CPU, kept="float32")
    random = Random(0)
    prompts = [[random.randrange(VOCAB) for _ in range(length)] for length in (1, 60)]
    exact = {len(prompt): saved.logits(prompt) for prompt in prompts}
    saved.model.to(dtype)
    theirs = max(float((saved.logits(prompt).float() - exact[len(prompt)]).abs().max()) for prompt in prompts)
    engine = ChunkedEngine(
        ModelSource(config=read_hf_config(tmp_path), kind="folder", path=str(tmp_path)),
        layout=Layout(tp_size=4, dcp_size=2),
        geometry=Geometry(page_size=3, dcp_size=2),
        num_blocks=60,
        reference=lambda prompt: exact[len(prompt)],
        tolerance=1.5 * theirs,
        dtype=dtype,
    )
    engine.check(prompts, random)
    engine.world.close()


def test_auto_is_float32_on_a_cpu_and_elsewhere_what_the_files_say() -> None:
    assert resolve_dtype("auto", device=CPU, kept="bfloat16") == torch.float32
    assert resolve_dtype("auto", device=torch.device("cuda"), kept="bfloat16") == torch.bfloat16
    assert resolve_dtype("float16", device=torch.device("cuda"), kept="bfloat16") == torch.float16
