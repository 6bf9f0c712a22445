"""What every test shares: where the recorded data lies, and signals that processes of a test understand."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """A shell that runs tests in the background has them ignore Ctrl-C, and all that they start would inherit it."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Event frames recorded from released SGLang and vLLM, with the truth after each step."""
    return Path(__file__).parent / "golden"
