"""Large tensors get large pages, unless whoever starts the engine decides otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_process import ROOT

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PROGRAM = """
import re
from engine.huge_pages import ask_for_huge_pages
ask_for_huge_pages()
import torch
tensor = torch.ones(16 << 20)
print(re.search(r"AnonHugePages: +([0-9]+) kB", open("/proc/self/smaps_rollup").read()).group(1))
"""


def huge_kilobytes(**environ: str) -> int:
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"} | environ
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(
    not SETTING.exists() or "[madvise]" not in SETTING.read_text(),
    reason="the system gives large pages always or never, not on request",
)
def test_tensors_of_64_megabytes_lie_in_large_pages_on_request() -> None:
    assert huge_kilobytes() > 32 * 1024
    assert huge_kilobytes(THP_MEM_ALLOC_ENABLE="0") < 32 * 1024
