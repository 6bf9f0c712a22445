"""``bench/gpu.py``: it says so where there is no GPU; and its cases hold under Triton's interpreter, at small sizes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bench import engine_answers
from bench.gpu import check_ranks

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has no wheel for this platform")

ROOT = Path(__file__).parent.parent.parent
CHECK = """
import sys, torch
from bench.kernel_cases import cases, odd_sizes
for case in cases(odd_sizes(torch.device("cpu")), seed=int(sys.argv[1])):
    assert case.moved_bytes > 0
    print(case.name, case.error())
"""


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100
    )


@pytest.mark.parametrize("call", [("bench/gpu.py",), ("-m", "bench.gpu")])
def test_without_a_gpu_it_says_so_and_nothing_is_wrong(call: tuple[str, ...]) -> None:
    done = python(*call, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("bench/gpu.py: torch finds no GPU, so no kernel was checked and nothing was measured\n")


def test_every_kernel_agrees_with_its_reference_on_sizes_that_fill_no_tile() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    done = python("-c", CHECK, str(seed), TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    names = ["slot mapping", "KV store", "kernel tables", "paged decode", "extend attention", "LSE merge"]
    assert [line.rpartition(" ")[0] for line in lines] == names
    assert all(float(line.rpartition(" ")[2]) < 1e-4 for line in lines)


def test_ranks_are_held_to_what_one_on_a_cpu_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_ranks("cpu", counts=[2]) == []
    assert capsys.readouterr().out == "2 ranks on cpu     the same tokens as one on a CPU\n"
    monkeypatch.setattr(engine_answers, "answers_of_processes", lambda device, *, ranks: [[ranks]])
    assert check_ranks("cpu", counts=[1, 2]) == ["2 ranks on cpu"]
