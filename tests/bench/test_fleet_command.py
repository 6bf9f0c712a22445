"""``python -m bench fleet``: its figures, and one line for what it cannot simulate."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any, cast

import pytest

from bench.__main__ import main
from bench.fleet import growth
from bench.fleet.policies.registry import SHOWN
from bench.fleet.report import CEILING, METRICS
from bench.workloads.generated import SHAPES, Shape

ROWS = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
    {"timestamp": 400, "input_length": 1300, "output_length": 5, "hash_ids": [1, 2, 4]},
    {"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [1, 9]},
]
SMALL = ["--shape", '{"requests": 200, "roots": 5}', "--replicas", "3", "--blocks", "200"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_policy_reports_every_metric_of_a_made_up_workload(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", *SMALL, "--json"]) == 0
    found = lines(capsys)
    assert {one["case"] for one in found} == {"generated replicas=3 blocks=200"}
    told = {(one["subject"], one["metric"]) for one in found}
    assert told == {(policy, metric.name) for policy in SHOWN for metric in METRICS} | {
        (CEILING, "token_hit_rate"),
        (CEILING, "block_hit_rate"),
    }
    assert all(one["bench"] == "fleet" and one["runs"] == 1 for one in found)


def test_a_recorded_workload_is_played_at_its_times_and_the_case_names_what_is_unusual(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """3,000 tokens in a second at load 0.3 are 0.1 ms a token: the second prompt finds two blocks, the third one."""
    asked = ["--replicas", "1", "--load", "0.3", "--lag", "5", "--policy", "kv", "--runs", "3"]
    assert main(["fleet", "--trace", str(trace), *asked, "--json"]) == 0
    found = {(one["subject"], one["metric"]): one for one in lines(capsys)}
    assert found["kv", "token_hit_rate"]["value"] == pytest.approx((1024 + 512) / 3000)
    assert found["kv", "block_hit_rate"]["value"] == pytest.approx(3 / 8)
    assert found["kv", "share_of_ceiling"]["value"] == 1
    assert found["kv", "ttft_mean"]["value"] == pytest.approx((1100 + 276 + 88) * 1e-4 / 3)
    assert found["kv", "ttft_mean_prefills"]["value"] == pytest.approx((1100 + 276 + 88) / 3000)
    assert found["kv", "ttft_p50"]["value"] == pytest.approx(276e-4)
    assert found["kv", "ttft_p99"]["value"] == pytest.approx(1100e-4)
    assert found["kv", "token_hit_rate"]["runs"] == 3
    assert found["kv", "token_hit_rate"]["case"] == "rows replicas=1 blocks=5000 load=0.3 lag=0.005"


def test_a_table_is_shown_to_readers(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "--trace", str(trace), "--policy", "round_robin", "overlap"]) == 0
    shown = capsys.readouterr().out
    assert "round_robin" in shown
    assert CEILING in shown


def test_named_shapes_and_terms_left_out_are_played_with_several_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--shape", "small", "--replicas", "2", "--policy", "kv", "kv-without-room", "--runs", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cast("dict[str, Shape]", SHAPES), "small", Shape(requests=60))
        assert main(["fleet", *flags]) == 0
    shown = capsys.readouterr().out
    assert "kv-without-room" in shown
    assert shown.count("±") == 4, "hits and times of two policies"
    assert SHAPES["coding"].block_tokens == 512


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--replicas", "0"], "argument --replicas: must be at least 1, got 0"),
        (["--load", "0"], "argument --load: must be above 0, got 0"),
        (["--loss", "1"], "argument --loss: must be at least 0 and below 1, got 1"),
        (["--speeds", "1,-2"], "argument --speeds: must be above 0, got -2"),
        (["--policy", "best"], "argument --policy: invalid choice: 'best'"),
        (["--shape", '{"requests": 0}'], "argument --shape: Expected `int` >= 1 - at `$.requests`"),
        (["--shape", '{"depth": 3}'], "argument --shape: Object contains unknown field `depth`"),
    ],
)
def test_a_flag_that_makes_no_fleet_is_refused_by_name(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fleet", *flags])
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in told
    assert told.count("\n") == 1


def test_what_cannot_be_simulated_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + json.dumps(ROWS[1] | {"input_length": -1}) + "\n")
    cases = {
        ("--trace", str(path)): f"{path}, line 2: Expected `int` >= 1 - at `$.input_length`",
        ("--trace", str(tmp_path / "none.jsonl")): "none.jsonl",
        ("--trace", str(path), "--tokenizer", str(tmp_path)): f"there is no {tmp_path / 'tokenizer.json'}",
        ("--restarts", "1", "--replicas", "1"): "--restarts 1 needs 2 replicas or more, got 1",
        ("--shape", '{"requests": 1}'): "generated: 1 requests within 0 s",
    }
    for flags, said in cases.items():
        assert main(["fleet", *flags]) != 0
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert said in err


def test_a_picture_is_drawn_where_matplotlib_is_installed(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the bench extra")
    picture = tmp_path / "fleet.png"
    flags = ["fleet", "--trace", str(trace), "--policy", "kv", "random", "--plot"]
    assert main([*flags, str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*flags, str(tmp_path / "nowhere" / "fleet.png")]) == 1
    said = capsys.readouterr().err
    assert said.endswith(f"bench fleet: --plot: there is no folder {tmp_path}/nowhere\n"), "before anything is played"


def test_a_picture_without_matplotlib_is_refused_before_anything_is_simulated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["fleet", "--plot", "fleet.png"]) == 1
    assert capsys.readouterr().err.startswith("bench fleet: --plot: needs matplotlib")


def test_growth_is_timed_for_fleets_and_prompts_of_growing_sizes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"REPLICAS": (2, 4), "ROOT_TOKENS": (512, 4_096), "REQUESTS": 20}.items():
        monkeypatch.setattr(growth, name, value)
    assert main(["fleet", "--growth", "--policy", "kv", "dynamo-cost", "--runs", "2", "--json"]) == 0
    found = lines(capsys)
    assert len({one["case"] for one in found}) == 4
    assert {(one["subject"], one["metric"]) for one in found} == {
        (policy, metric) for policy in ("kv", "dynamo-cost") for metric in ("choice", "simulated_request")
    }
    assert all(one["value"] > 0 and one["runs"] == 2 for one in found)


def test_a_workload_may_be_hastened_and_one_that_is_too_slow_for_a_router_is_told_of(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """3,000 tokens in a second keep 500 replicas busy for 0.7 of it if each token takes 0.117 s."""
    asked = ["fleet", "--trace", str(trace), "--policy", "round_robin", "--json", "--replicas", "500"]
    found: dict[str, float] = {}
    for hasten, said in (("1", "takes 0.117 s a token"), ("2", "")):
        assert main([*asked, "--hasten", hasten]) == 0
        out, err = capsys.readouterr()
        assert ("--hasten 2 or more" in err, said in err) == (bool(said), True)
        (one,) = (one for one in map(json.loads, out.splitlines()) if one["metric"] == "ttft_mean")
        found[one["case"].split(" replicas")[0]] = one["value"]
    assert found["rows"] == pytest.approx(2 * found["rows x2"])
