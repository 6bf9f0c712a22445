"""What has become of processes that a test knows the ids of."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from patience import PATIENCE

__all__ = ["assert_gone", "children", "state"]


def state(pid: int) -> str | None:
    """A process's state letter; None once it is gone, also where nobody has taken notice of its end yet."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    letter = text.rpartition(")")[2].split()[0]
    return None if letter in "ZX" else letter


def children(pid: int) -> list[int]:
    """Processes that ``pid`` has started, oldest first."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sorted(int(child) for task in tasks for child in (task / "children").read_text().split())


def assert_gone(pids: Sequence[int], *, already: bool = False) -> None:
    """Wait until all of them have ended; do not wait where they must have ``already``."""
    deadline = time.monotonic() + (0.0 if already else PATIENCE)
    while left := [pid for pid in pids if state(pid) is not None]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.01)
