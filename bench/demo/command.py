"""``python -m bench demo``: its flags, its exit status, and what it prints around the runs."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import msgspec
from rich.console import Console

from bench.children import ChildError
from bench.client import RequestError
from bench.demo.chats import ChatScenario
from bench.demo.models import MODELS, SMOLLM2, TINY
from bench.demo.run import PolicyRun, run_policies
from bench.demo.scenario import FleetError, Scenario
from bench.demo.show import comparison, report_table
from bench.demo.trace import TraceScenario
from bench.flag_values import above, at_least
from bench.router_view import RouterError
from bench.texts import find_texts
from program.command_line import BAD_FLAGS_STATUS

__all__ = ["add_command", "make_scenario"]

POLICIES = ("round_robin", "kv")
PLAIN_WIDTH = 120
HELD, FAILED = 0, 1
_BOTH = ("replicas", "seed", "cache_share")
_CHATS_ONLY = ("model", "texts", "conversations", "turns")
_SHAPE = ("conversations", "turns")
_TRACE_ONLY = ("first_rows", "speedup", "max_input", "max_output")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``demo`` to the commands; defaults are those of the scenarios."""
    parser = commands.add_parser("demo", help="play one workload under two routing policies and compare")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="play a Mooncake-format trace on sim replicas")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the output of every process here")
    fleets = f"{ChatScenario.replicas}, with a trace {TraceScenario.replicas}"
    parser.add_argument("--replicas", type=at_least(1), help=f"engine replicas (default: {fleets})")
    parser.add_argument("--seed", type=int, help=f"seed of workload and router (default: {ChatScenario.seed})")
    shares = f"{ChatScenario.cache_share:g}, with a trace {TraceScenario.cache_share:g}"
    parser.add_argument(
        "--cache-share", type=above(0.0), help=f"cache of a replica per token in use (default: {shares})"
    )
    _add_chat_flags(parser.add_argument_group("without a trace"))
    _add_trace_flags(parser.add_argument_group("with a trace"))
    parser.set_defaults(run=_run)


def _add_chat_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", choices=tuple(MODELS), help=f"what the replicas serve (default: {TINY.name})")
    texts = "real chats to play on smollm2 (default: a recording in ../shared/traces, else made-up chats)"
    group.add_argument("--texts", type=Path, metavar="FILE", help=texts)
    tiny, smollm2 = TINY.shape, SMOLLM2.shape
    counts = f"(default: {tiny.conversations}, on smollm2 {smollm2.conversations})"
    group.add_argument("--conversations", type=at_least(1), help=counts)
    turns = f"turns of each (default: {tiny.turns}, on smollm2 {smollm2.turns})"
    group.add_argument("--turns", type=at_least(1), help=turns)


def _add_trace_flags(group: argparse._ArgumentGroup) -> None:
    default = TraceScenario
    rows = f"how many of the trace's first rows are played (default: {default.first_rows})"
    group.add_argument("--requests", type=at_least(1), dest="first_rows", help=rows)
    group.add_argument("--speedup", type=above(0.0), help=f"divides the timestamps (default: {default.speedup:g})")
    group.add_argument(
        "--max-input", type=at_least(1), help=f"longer prompts are skipped (default: {default.max_input})"
    )
    group.add_argument(
        "--max-output", type=at_least(1), help=f"answers are cut to this (default: {default.max_output})"
    )


def make_scenario(args: argparse.Namespace) -> Scenario:
    """The scenario that the flags ask for.

    Raises:
        ValueError: a flag of another scenario is given.
        TraceError: the trace cannot be read.
    """
    foreign = _CHATS_ONLY if args.trace else _TRACE_ONLY
    if given := _given(args, foreign):
        only = "without" if args.trace else "with"
        raise ValueError(f"{', '.join(given)} only means something {only} --trace")
    if args.trace:
        return TraceScenario(trace=args.trace, **_given(args, _BOTH + _TRACE_ONLY))
    return _chat_scenario(args)


def _chat_scenario(args: argparse.Namespace) -> ChatScenario:
    model = MODELS[args.model or TINY.name]
    if args.texts is not None and not model.reads_texts:
        raise ValueError(f"texts only means something with --model {SMOLLM2.name}: {model.name} reads bytes")
    texts = args.texts or (find_texts() if model.reads_texts else None)
    shape = msgspec.structs.replace(model.shape, **_given(args, _SHAPE))
    return ChatScenario(model=model, texts=texts, shape=shape, **_given(args, _BOTH))


def _given(args: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def _run(args: argparse.Namespace) -> int:
    console = _console()
    try:
        scenario = make_scenario(args)
        for line in scenario.setting():
            console.print(line, highlight=False)
        if args.logs is not None:
            args.logs.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:  # TraceError is a ValueError
        return _complain(str(error), BAD_FLAGS_STATUS)
    if args.logs is not None:
        return _play(scenario, console, args.logs)
    return _play_with_passing_logs(scenario, console)


def _play_with_passing_logs(scenario: Scenario, console: Console) -> int:
    """Likewise with logs that are kept only where something failed."""
    logs, status = Path(mkdtemp(prefix="kvsteer-demo-")), HELD
    try:
        status = _play(scenario, console, logs)
    finally:
        if status != FAILED:
            rmtree(logs)
    if status == FAILED:
        _complain(f"the output of every process is kept in {logs}", FAILED)
    return status


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def _play(scenario: Scenario, console: Console, logs: Path) -> int:
    try:
        runs = asyncio.run(_until_signalled(scenario, console, logs))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except (ChildError, FleetError, RouterError, RequestError) as error:
        return _complain(str(error), FAILED)
    return _conclude(runs, scenario, console)


async def _until_signalled(scenario: Scenario, console: Console, logs: Path) -> list[PolicyRun]:
    """The runs; SIGTERM and SIGHUP end them as Ctrl-C does, so that the processes are stopped in order."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None, "asyncio.run makes a task"
    for name in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(name, task.cancel)
    return await run_policies(scenario, POLICIES, console=console, log_dir=logs)


def _conclude(runs: Sequence[PolicyRun], scenario: Scenario, console: Console) -> int:
    """Print the figures and the verdict; the exit status."""
    console.print(report_table([run.report for run in runs]))
    for run in runs:
        late = f", requests left up to {run.late_seconds * 1000:.0f} ms late" if run.late_seconds else ""
        console.print(f"{run.report.policy}: {run.seconds:.1f} s{late}", highlight=False)
    console.print(comparison(runs[0].report, runs[-1].report), highlight=False)
    broken = [f"{run.report.policy}: {breach}" for run in runs for breach in run.breaches]
    for line in broken:
        _complain(f"contract broken: {line}", FAILED)
    if broken:
        return FAILED
    console.print(
        f"contract held: advertised, emitted and hashed at {scenario.width} tokens a block on every replica; "
        f"{sum(run.probes for run in runs)} repeated prompts were cached for exactly the tokens predicted",
        highlight=False,
    )
    return HELD


def _complain(message: str, status: int) -> int:
    print(f"bench demo: {message}", file=sys.stderr)
    return status
