"""Fixtures shared by every test: where the recorded data lies."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Event frames recorded from released SGLang and vLLM, with the truth after each step."""
    return Path(__file__).parent / "golden"
