"""Models of Hugging Face folders: the same logits as transformers, on every layout and page, however computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from chunked_engine import ChunkedEngine
from hf_models import CONFIGS, VOCAB, SavedModel, save_random_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.geometry import Geometry
from engine.model.hf_config import read_hf_config
from engine.model.source import ModelSource
from engine.parallel.layout import Layout

# One rank; whole DCP groups of 2 and 3; groups of heads with and without DCP.
LAYOUTS = [(1, 1), (2, 2), (3, 3), (3, 1), (4, 2)]
PAGE_SIZES = [1, 3, 16]
NUM_BLOCKS = 220
TOLERANCE = 1e-4  # logits have a standard deviation of 1.8


def source_of(folder: Path) -> ModelSource:
    return ModelSource(config=read_hf_config(folder), kind="folder", path=str(folder))


@pytest.fixture(scope="module", params=CONFIGS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SavedModel:
    return save_random_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def engines(saved: SavedModel) -> Iterator[list[ChunkedEngine]]:
    made = [
        ChunkedEngine(
            source_of(saved.folder),
            layout=Layout(tp_size=tp_size, dcp_size=dcp_size),
            geometry=Geometry(page_size=page_size, dcp_size=dcp_size),
            num_blocks=NUM_BLOCKS,
            reference=saved.logits,
            tolerance=TOLERANCE,
        )
        for tp_size, dcp_size in LAYOUTS
        for page_size in PAGE_SIZES
    ]
    yield made
    for engine in made:
        engine.world.close()


def random_prompts(lengths: Sequence[int], random: Random) -> list[list[int]]:
    return [[random.randrange(VOCAB) for _ in range(length)] for length in lengths]


@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 70), min_size=1, max_size=3), st.integers(0, 2**32))
def test_logits_are_those_of_transformers(engines: list[ChunkedEngine], lengths: list[int], seed: int) -> None:
    random = Random(seed)
    for engine in random.sample(engines, 5):
        engine.check(random_prompts(lengths, random), random)


def test_so_they_are_on_every_layout_and_page_with_contexts_shorter_than_a_dcp_group(
    engines: list[ChunkedEngine],
) -> None:
    random = Random(0)
    for engine in engines:
        engine.check(random_prompts([2, 1, 50], random), random)
