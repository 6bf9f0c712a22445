"""Drives vLLM without a GPU: its cache manager alone, or its scheduler. Runs in vLLM's own environment.

``kind`` is ``full`` (full attention, whose blocks DCP widens), ``swa`` (full attention beside a sliding window) or
``mamba`` (full attention beside a Mamba state of twice the block).
"""

from __future__ import annotations

from typing import Any

from lockstep import Engine, serve
from vllm_manager import ManagedCache
from vllm_scheduler import ScheduledEngine


def make(asked: dict[str, Any]) -> Engine:
    return ScheduledEngine(asked) if asked["scheduler"] else ManagedCache(asked)


if __name__ == "__main__":
    serve(make)
