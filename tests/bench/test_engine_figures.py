"""``python -m bench engine``: figures as lines of JSON, and one line where there are none."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from bench.engine.speed import Workload, compare
from bench.engine.timing import Timing
from bench.figures import Figure

ROOT = Path(__file__).parent.parent.parent
FIELDS = {"bench", "case", "subject", "metric", "value", "unit", "runs"}
WORK = Workload(vocabulary=50, batch=2, prompt_tokens=6, new_tokens=4, runs=3, seed=1)


def bench(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "engine", *flags]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)


def test_the_built_in_model_is_measured_without_anybody_to_compare_with() -> None:
    done = bench("--model-path", "tiny", "--prompt-tokens", "20", "--new-tokens", "3", "--runs", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "bench engine: only a model in a folder can be measured beside transformers\n"
    figures: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(set(one) == FIELDS and one["value"] > 0 and one["bench"] == "engine" for one in figures)
    assert {one["subject"] for one in figures} == {"kvsteer"}
    rates = [(one["case"], one["metric"], one["runs"]) for one in figures if one["unit"] == "tok/s"]
    assert rates == [(f"tiny, batch {batch}", metric, 2) for batch in (1, 8) for metric in ("prefill", "decode")]
    values = {(one["case"], one["metric"]): one["value"] for one in figures}
    assert values["tiny, 2048 tokens", "cold / cached"] > 1
    shares = [values[f"tiny, 2048 tokens, dcp {dcp_size}", "of dcp 1"] for dcp_size in (1, 2, 4)]
    assert shares == [1, 1 / 2, 1 / 4]
    assert values["tiny, 2048 tokens, dcp 1", "KV bytes a rank"] == 2 * 2 * 2048 * 2 * 16 * 4


@pytest.mark.parametrize("model_path", ["sim", "tiny-hybrid", "no-such-model"])
def test_a_model_that_is_not_measured_is_one_line(model_path: str) -> None:
    done = bench("--model-path", model_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("bench engine: ")
    assert model_path in done.stderr
    assert done.stderr.count("\n") == 1


class Paced:
    """Somebody whose runs take what is written down; the first is the warm-up."""

    def __init__(self, name: str, timings: Sequence[Timing]) -> None:
        self.name = name
        self.prompts: list[Sequence[Sequence[int]]] = []
        self._timings = iter([Timing(prefill=99, decode=99), *timings])

    def play(self, prompts: Sequence[Sequence[int]], *, new_tokens: int) -> Timing:
        self.prompts.append(prompts)
        return next(self._timings)


def test_values_are_medians_and_ratios_are_of_one_run() -> None:
    ours = Paced("a", [Timing(prefill=seconds, decode=seconds) for seconds in (1, 3, 2)])
    theirs = Paced("b", [Timing(prefill=seconds, decode=seconds) for seconds in (2, 3, 8)])
    values = {(one.subject, one.metric): one.value for one in compare("case", [ours, theirs], WORK)}
    assert values == {
        ("a", "prefill"): 12 / 2,
        ("b", "prefill"): 12 / 3,
        ("a / b", "prefill ratio"): 2,
        ("a", "decode"): 6 / 2,
        ("b", "decode"): 6 / 3,
        ("a / b", "decode ratio"): 2,
    }


def test_every_run_has_prompts_of_its_own_and_all_subjects_the_same() -> None:
    subjects = [Paced(name, [Timing(prefill=1, decode=1)] * 3) for name in "ab"]
    figures: list[Figure] = list(compare("case", subjects, WORK))
    assert all(one.runs == 3 for one in figures)
    assert subjects[0].prompts == subjects[1].prompts
    drawn = [prompt for prompts in subjects[0].prompts for prompt in prompts]
    assert len({tuple(prompt) for prompt in drawn}) == 4 * WORK.batch
    assert all(len(prompt) == 6 and set(prompt) <= set(range(50)) for prompt in drawn)


def test_transformers_plays_as_long_as_it_is_asked_to(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from bench.engine.theirs import Theirs

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=50, num_key_value_heads=1, **sizes)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    ticks = itertools.count()
    timing = Theirs(tmp_path, clock=lambda: float(next(ticks))).play([[1, 2, 3], [4, 5, 6]], new_tokens=4)
    assert timing == Timing(prefill=1, decode=1)


def test_a_prompt_found_in_a_cache_is_no_measurement_of_prefill() -> None:
    cheat = Paced("a", [Timing(prefill=1, decode=1, cached_tokens=5)] * 3)
    with pytest.raises(AssertionError, match="a had 5 tokens in its cache"):
        list(compare("case", [cheat], WORK))
