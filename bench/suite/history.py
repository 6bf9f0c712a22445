"""``bench/RESULTS.md``: what each run of all benches said, the newest first. What is there is never changed."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from bench.figures import Figure
from bench.suite.tables import tables

__all__ = ["RESULTS", "Part", "Run", "as_markdown", "record"]

RESULTS = Path(__file__).parent.parent / "RESULTS.md"
_HEADING = """# Results

Every run of `make bench` that was kept, the newest first. A value is the median of its runs; only values of one run are
to be compared with each other, since machines differ and are shared.
"""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One bench: its command line, what it printed, its exit status and how long it took."""

    command: str
    figures: tuple[Figure, ...]
    status: int
    seconds: float


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All benches of one day and revision."""

    day: str
    revision: str
    machine: str
    parts: tuple[Part, ...]


def as_markdown(run: Run) -> str:
    """One section."""
    lines = [f"## {run.day}, {run.revision}", "", f"{run.machine}.", ""]
    for part in run.parts:
        ended = "" if part.status == 0 else f", ended with status {part.status}"
        lines += [f"### `{part.command}` ({part.seconds:.0f} s{ended})", ""]
        for table in tables(part.figures):
            lines += [table, ""]
    return "\n".join(lines)


def record(run: Run, path: Path) -> None:
    """Put ``run`` before those that ``path`` holds already; the file is replaced whole or not at all."""
    older = path.read_text().removeprefix(_HEADING) if path.exists() else ""
    beside = path.with_suffix(".new")
    beside.write_text(f"{_HEADING}\n{as_markdown(run)}{older}")
    os.replace(beside, path)
