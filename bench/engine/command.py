"""``python -m bench engine``: its flags, and which figures can be had here."""

from __future__ import annotations

import argparse
import os
import sys

from bench.figures import as_json, as_text
from bench.flag_values import at_least
from bench.smollm2 import FOLDER
from engine.huge_pages import ask_for_huge_pages
from engine.model.config import TINY, ModelError

__all__ = ["add_command"]


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``engine`` to the commands."""
    parser = commands.add_parser("engine", help="measure prefill, decode, first tokens and the size of the KV cache")
    parser.add_argument(
        "--model-path", default=str(FOLDER), help="a folder, or tiny (default: SmolLM2 where `make model` put it)"
    )
    parser.add_argument("--prompt-tokens", type=at_least(2), default=256, help="of each prompt (default: 256)")
    parser.add_argument("--new-tokens", type=at_least(2), default=32, help="of each answer (default: 32)")
    parser.add_argument("--runs", type=at_least(1), default=3, help="figures are medians of so many (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (default: 0)")
    parser.add_argument(
        "--cpu-time", action="store_true", help="seconds are CPU seconds, for machines that others keep busy"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
    ask_for_huge_pages()
    from bench.engine.measure import Plan, measure

    if args.model_path == str(FOLDER) and not FOLDER.is_dir():
        _say(f"{FOLDER} is not there (`python -m bench model` fetches it), tiny is measured in its place")
        args.model_path = TINY.name
    plan = Plan(
        model_path=args.model_path,
        prompt_tokens=args.prompt_tokens,
        new_tokens=args.new_tokens,
        runs=args.runs,
        seed=args.seed,
        cpu_time=args.cpu_time,
    )
    try:
        for one in measure(plan, say=_say):
            print(as_json(one) if args.json else as_text(one), flush=True)
    except ModelError as error:
        _say(str(error))
        return 1
    return 0


def _say(line: str) -> None:
    print(f"bench engine: {line}", file=sys.stderr)
