"""A program says when plain Python does a compiled core's work, and is silent where none does."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from program import compiled_cores
from program.compiled_cores import in_use, say_what_is_plain

ROOT = Path(__file__).parent.parent.parent
LOG = logging.getLogger("router")


def test_nothing_is_said_of_cores_in_use(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_cores, "PLAIN_ONLY", False)
    assert in_use("math")
    say_what_is_plain(LOG, ["math", "json"])
    assert caplog.messages == []


def test_a_core_that_was_not_built_is_named_with_the_likely_cause(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_cores, "PLAIN_ONLY", False)
    assert not in_use("router.intake._absent")
    say_what_is_plain(LOG, ["math", "router.intake._absent"])
    assert caplog.messages == [
        "plain Python, which is slower, stands in for router.intake._absent "
        "(not built: was there a C compiler at the install?)"
    ]


def test_a_router_without_its_cores_says_so_once_at_the_start() -> None:
    script = (
        "from router.config import RouterConfig\nfrom router.process import log_to_stderr\n"
        "log_to_stderr(RouterConfig(replicas=['http://127.0.0.1:1']))"
    )
    environment = os.environ | {"KVSTEER_PLAIN_PYTHON": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert line.endswith(
        "plain Python, which is slower, stands in for contract._keys, contract.events._wire, router.intake._table, "
        "router.intake._zmtp (KVSTEER_PLAIN_PYTHON is set)"
    )
