"""The engines, each in a process of its own environment; tests skip where that environment was not made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from driven_engine import DrivenEngine, driven


@pytest.fixture(scope="session")
def sglang() -> Iterator[DrivenEngine]:
    """SGLang 0.5.23."""
    yield from driven("sglang")


@pytest.fixture(scope="session")
def vllm() -> Iterator[DrivenEngine]:
    """vLLM 0.33.0."""
    yield from driven("vllm")
