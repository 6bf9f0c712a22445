"""``python -m bench ranks``: both kinds of ranks are measured by the same work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.ranks import decode_step

ROOT = Path(__file__).parent.parent.parent


def test_a_decode_step_of_eight_requests_is_a_few_hundred_bytes() -> None:
    assert 100 < len(decode_step()) < 500


def test_every_cost_is_measured_for_threads_and_for_processes() -> None:
    command = [sys.executable, "-m", "bench", "ranks", "--ranks", "2", "--rounds", "5", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    costs = [json.loads(line) for line in done.stdout.splitlines()]
    cases = ["2 ranks, hand over a step", "2 ranks, gather", "2 ranks, sum"]
    assert [(cost["subject"], cost["case"], cost["metric"]) for cost in costs] == [
        (subject, case, metric) for subject in ("threads", "processes") for case in cases for metric in ("p50", "p95")
    ]
    assert all((cost["unit"], cost["runs"]) == ("us", 5) and cost["value"] > 0 for cost in costs)
