"""``python -m bench tracing``: every figure is there, and the bytes are those of the files it wrote."""

from __future__ import annotations

import json

import pytest

from bench.__main__ import main


def test_it_prints_a_figure_for_each_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tracing", "--runs", "1", "--each", "20", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(one["bench"], one["subject"], one["runs"]) for one in found} == {("tracing", "kvsteer", 1)}
    values = {(one["case"], one["metric"]): one["value"] for one in found}
    assert len(values) == len(found) == 8
    assert values["recording a batch of 256 tokens", "size"] > 256
    longer, shorter = (values[f"recording a request of {tokens} tokens", "size"] for tokens in (8192, 200))
    assert longer > shorter > 0
