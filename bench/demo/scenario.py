"""What a demo is, whatever it plays: a fleet's command lines, a workload, what to say of both. Starts nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.tally import Ask

__all__ = ["DCP_SIZE", "EngineProcess", "FleetError", "Scenario", "engine_command"]

DCP_SIZE = 2
# The system chooses every port, and the events of a demo concern nobody else: they stay on the loopback interface.
_EVENTS = '{"publisher":"zmq","endpoint":"tcp://127.0.0.1:0","replay_endpoint":"tcp://127.0.0.1:0","bind":true}'


class FleetError(RuntimeError):
    """A replica that will not do what the demo needs of it, in one line."""


@dataclass(frozen=True, kw_only=True)
class EngineProcess:
    """One process to start, and how many replicas it serves."""

    name: str
    command: Sequence[str]
    replicas: int = 1


class Scenario(Protocol):
    """A fleet and a workload for it."""

    @property
    def seed(self) -> int:
        """Seed of the workload and of the router."""
        ...

    @property
    def width(self) -> int:
        """Tokens a block: what every replica must advertise and emit, and the router must hash at."""
        ...

    @property
    def requests(self) -> int:
        """Requests of one run."""
        ...

    def setting(self) -> list[str]:
        """What was chosen, assumed and cut, a line each."""
        ...

    def engines(self) -> list[EngineProcess]:
        """The processes that make up the fleet."""
        ...

    async def play(self, ask: Ask) -> None:
        """Send every request and return when all have ended."""
        ...


def engine_command(model_path: str, *, page_size: int, cache_tokens: int, **more: object) -> list[str]:
    """Command line of one engine process on free ports; ``more`` are further flags, by their names."""
    flags = {
        "model_path": model_path,
        "page_size": page_size,
        "tp_size": DCP_SIZE,
        "dcp_size": DCP_SIZE,
        "max_total_tokens": cache_tokens,
        "port": 0,
        "kv_events_config": _EVENTS,
        **more,
    }
    named = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    return [sys.executable, "-m", "engine", *named]
