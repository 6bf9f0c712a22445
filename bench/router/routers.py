"""The routers that benches compare, and the command lines that start them before the same fleet. Starts nothing.

Peers live in environments of their own (``make peers``). Everybody logs warnings only, and takes the defaults for what
is not about addresses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

__all__ = ["KVSTEER", "SMG", "VLLM_ROUTER", "Fleet", "Ports", "Replica", "Router", "command", "missing"]

KVSTEER, VLLM_ROUTER, SMG = "kvsteer", "vllm-router", "smg"
READY = "kvsteer-router ready "
_ROOT = Path(__file__).parent.parent.parent
_HOST = ("--host", "127.0.0.1")


class Router(msgspec.Struct, frozen=True, kw_only=True):
    """A product under one of its policies. ``processes`` serve one port."""

    product: str
    policy: str
    processes: int = 1

    @property
    def name(self) -> str:
        """As figures call it: ours by its name alone where the policy is the default."""
        if self.product != KVSTEER:
            return f"{self.product}-{self.policy}"
        return (
            KVSTEER
            + (f"-{self.policy}" if self.policy != "kv" else "")
            + (f" --workers {self.processes}" if self.processes > 1 else "")
        )

    @property
    def takes_ids(self) -> bool:
        """Whether ``/v1/completions`` takes token ids: smg 1.13 answers them 400."""
        return self.product != SMG

    @property
    def reads_events(self) -> bool:
        """Whether it chooses by what engines announce."""
        return self.policy in ("kv", "kv_aware")

    @property
    def blind_because(self) -> str | None:
        """Why a router that steers by caches does not read what engines announce of them; None for others."""
        if self.product != SMG:
            return None
        return "reads events of gRPC workers only, and these are HTTP: it goes by the texts that it has sent where"


class Replica(msgspec.Struct, frozen=True):
    """An engine's base URL, and where its events and their replays come from."""

    url: str
    events: str
    replay: str | None


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Who is routed to, under which model name, and how many tokens a block of theirs has."""

    replicas: Sequence[Replica]
    model: str
    block_width: int


class Ports(msgspec.Struct, frozen=True):
    """Where a peer listens: for requests, and for Prometheus."""

    http: int
    metrics: int


def missing(router: Router) -> str | None:
    """Why it cannot be started here; None where it can."""
    program = _program(router.product)
    return None if program.exists() else f"{router.name} is left out: {router.product} is not there (`make peers`)"


def _program(product: str) -> Path:
    return Path(sys.executable) if product == KVSTEER else _ROOT / f".venv-peer-{product}" / "bin" / product


def command(router: Router, fleet: Fleet, ports: Ports) -> list[str]:
    """The command line. Ours chooses its port by itself, and says so in a line that begins with ``READY``."""
    if router.product == KVSTEER:
        return _kvsteer(router, fleet)
    urls = [replica.url for replica in fleet.replicas]
    listen = [*_HOST, "--port", str(ports.http), "--prometheus-port", str(ports.metrics), "--worker-urls", *urls]
    start = ["--policy", router.policy, "--worker-startup-check-interval", "1"]
    program = str(_program(router.product))
    if router.product == SMG:
        return [program, "launch", *listen, *start, "--log-level", "warn"]
    events = _event_sources(fleet) if router.reads_events else []
    return [program, *listen, *start, "--log-level", "warning", *events]


def _kvsteer(router: Router, fleet: Fleet) -> list[str]:
    replicas = [part for replica in fleet.replicas for part in ("--replica", replica.url)]
    processes = ["--workers", str(router.processes)] if router.processes > 1 else []
    listen = [*_HOST, "--port", "0", "--log-level", "warning"]
    return [sys.executable, "-m", "router", *listen, "--policy", router.policy, *processes, *replicas]


def _event_sources(fleet: Fleet) -> list[str]:
    """vllm-router is told what ours finds out: endpoints, block width and model."""
    flags = ["--kv-event-block-size", str(fleet.block_width), "--kv-event-model", fleet.model]
    for replica in fleet.replicas:
        flags += ["--kv-event-source", f"{replica.url}={replica.events}"]
        if replica.replay is not None:
            flags += ["--kv-event-replay-source", f"{replica.url}={replica.replay}"]
    return flags
