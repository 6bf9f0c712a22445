"""``python -m bench``: what keeps a command from running is one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BARE = """
import sys
sys.modules.update(dict.fromkeys(("torch", "numpy", "transformers")))
from bench.__main__ import main
print(*(main([command]) for command in sys.argv[1:]))
"""


def test_a_command_that_needs_what_is_not_installed_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE, "engine", "index"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1 1\n", done.stderr
    assert [line for line in done.stderr.splitlines() if "error" in line] == [
        "bench engine: error: torch is not installed: pip install 'kvsteer[engine]'",
        "bench index: error: numpy is not installed: pip install 'kvsteer[engine]'",
    ]


def test_a_reader_that_has_enough_ends_a_bench_without_a_word() -> None:
    command = [sys.executable, "-m", "bench", "tracing", "--runs", "1", "--each", "1"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_a_wrong_command_line_is_one_line_and_status_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "demo", "--replicas", "0"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr == "python -m bench demo: error: argument --replicas: must be at least 1, got 0\n"
