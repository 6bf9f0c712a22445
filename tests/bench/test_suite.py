"""All benches in one page: tables that hold every figure, and a history that only grows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.figures import Figure
from bench.suite.history import Part, Run, as_markdown, record
from bench.suite.machine import describe, revision
from bench.suite.tables import tables

ROOT = Path(__file__).parent.parent.parent


def figure(case: str, subject: str, metric: str, value: float, *, unit: str = "us") -> Figure:
    return Figure(bench="index", case=case, subject=subject, metric=metric, value=value, unit=unit, runs=3)


FIGURES = (
    figure("16 lanes", "kvsteer", "look up", 12.345678),
    figure("16 lanes", "dynamo-radixtree", "look up", 40),
    figure("64 lanes", "kvsteer", "look up", 1234.5),
    figure("64 lanes", "kvsteer", "memory", 70, unit="B"),
)


def run(day: str, *parts: Part) -> Run:
    return Run(day=day, revision="abc1234", machine="2 cores", parts=parts)


def test_a_metric_is_a_table_of_cases_and_subjects_and_a_missing_figure_shows() -> None:
    assert list(tables(FIGURES)) == [
        "| look up (us) | kvsteer | dynamo-radixtree |\n"
        "| --- | ---: | ---: |\n"
        "| 16 lanes | 12.35 | 40 |\n"
        "| 64 lanes | 1,234 | - |",
        "| memory (B) | kvsteer |\n| --- | ---: |\n| 64 lanes | 70 |",
    ]


def test_the_history_grows_at_its_top_and_keeps_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    first = run("2026-01-01", Part(command="python -m bench index --json", figures=FIGURES, status=0, seconds=7.4))
    second = run("2026-01-02", Part(command="python -m bench e2e --json", figures=(), status=1, seconds=2))
    record(first, path)
    record(second, path)
    text = path.read_text()
    assert text.startswith("# Results\n")
    assert text.count("# Results\n") == 1
    assert text.endswith(f"{as_markdown(second)}\n{as_markdown(first)}")
    assert "### `python -m bench index --json` (7 s)" in text
    assert "### `python -m bench e2e --json` (2 s, ended with status 1)" in text
    assert [each.name for each in tmp_path.iterdir()] == ["RESULTS.md"]


def test_a_bench_that_there_is_none_of_is_one_line() -> None:
    command = [sys.executable, "-m", "bench", "all", "--only", "index", "speed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "bench all: no bench is called speed; there are engine, index, router, e2e, fleet\n"


def test_a_run_says_what_it_ran_on() -> None:
    assert "Python 3." in describe()
    assert "cores of " in describe()
    assert revision()
