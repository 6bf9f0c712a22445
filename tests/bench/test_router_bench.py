"""``python -m bench router``: real processes, real events, and figures as lines of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import main

ROOT = Path(__file__).parent.parent.parent


def test_ours_is_measured_without_peers_and_finds_what_is_cached() -> None:
    command = [sys.executable, "-m", "bench", "router", "--quick", "--runs", "1", "--only", "kvsteer", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["bench"] for one in figures} == {"router"}
    assert {one["subject"] for one in figures} == {"direct", "kvsteer"}
    found = {(one["case"], one["metric"]): one["value"] for one in figures if one["subject"] == "kvsteer"}
    cases = {case for case, _ in found} - {"after all"}
    assert len(cases) == 8
    assert all(found[case, "CPU"] > 0 for case in cases)
    assert all(found[case, "hits at 32"] == 0 for case in cases if case.endswith(" 0% shared"))
    assert all(found[case, "hits at 32"] > 0.5 for case in cases if case.endswith(" 90% shared"))
    assert found["after all", "resident memory"] > 1


def test_an_unknown_router_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["router", "--only", "nobody"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("bench router: no router is called nobody; there are kvsteer, ")
    assert said.err.count("\n") == 1
