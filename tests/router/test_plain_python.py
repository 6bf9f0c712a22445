"""Without anything compiled the router says the same of every recording, only later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SCRIPT = """
import sys
from pathlib import Path
import msgspec
from contract.hashing import keys_core
from router.intake.table import Table
from router.prompt import Prompt
from router.replay import Recording, read_recording

print(keys_core.chain.__module__, Table.__module__, file=sys.stderr)
for path in sorted(Path("tests/golden").glob("*.jsonl")):
    recording = Recording()
    for frame in read_recording(path):
        recording.feed(frame)
    lanes = recording.record(Prompt(range(1, 200)))
    for lane in lanes.lanes.values():
        lane.blocks.sort(key=str)
    print(path.name, msgspec.json.encode(lanes).decode())
"""


def told(**environment: str) -> tuple[str, str]:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr.strip()


def test_plain_python_follows_every_recording_to_the_same_end() -> None:
    usual, _ = told()
    plain, modules = told(KVSTEER_PLAIN_PYTHON="1")
    assert modules == "contract.plain_keys router.intake.plain_table"
    assert plain == usual
    assert len(usual.splitlines()) > 40
