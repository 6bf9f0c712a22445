"""What figures were measured on: a machine, a Python, and the versions of what was measured."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["describe", "revision"]

_ROOT = Path(__file__).parent.parent.parent
_CPU_INFO = Path("/proc/cpuinfo")
_PACKAGES = ("aiohttp", "torch", "transformers")
_PEERS = {"dynamo": "ai_dynamo_runtime", "vllm-router": "vllm_router", "smg": "smg"}


def describe() -> str:
    """One line: processor, cores, load before the run, Python, and versions of libraries and peers that are here."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = f"load {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else "load unknown"
    about = [f"{cores} cores of {_processor()}", load, f"Python {platform.python_version()}"]
    return ", ".join([*about, *_libraries(), *_peers()])


def revision() -> str:
    """The commit that is checked out, with a + if files differ from it; ``unknown`` outside a checkout."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], cwd=_ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def _processor() -> str:
    if _CPU_INFO.exists() and (model := re.search(r"model name\s*: (.+)", _CPU_INFO.read_text())):
        return " ".join(model[1].split())
    return platform.processor() or platform.machine()


def _libraries() -> Iterator[str]:
    for name in _PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue


def _peers() -> Iterator[str]:
    for name, package in _PEERS.items():
        installed = _ROOT.glob(f".venv-peer-{name}/lib/python*/site-packages/{package}-*.dist-info")
        for folder in installed:
            yield f"{name} {folder.name.removesuffix('.dist-info').rpartition('-')[2]}"
