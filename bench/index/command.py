"""``python -m bench index``: its flags, and how figures are shown.

``hash`` is a prompt's ids to the names of its blocks; ``match`` ids to matched tokens by lane; ``look up`` the same
where the names are known. ``ingest`` is CPU time for each block, from the bytes of its batch, ``bytes`` the memory that
it then takes. All of 8,192-token prompts and a million blocks; ``workload`` has the rest.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from bench.figures import as_json, as_text
from bench.flag_values import at_least

__all__ = ["add_command"]

_DYNAMO = Path(__file__).parent.parent.parent / ".venv-peer-dynamo" / "bin" / "python"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``index`` to the commands."""
    parser = commands.add_parser("index", help="measure the index: hashing, look-up, ingest, memory; ours and Dynamo's")
    parser.add_argument("--rounds", type=at_least(1), help="figures are medians of so many; with --quick fewer")
    parser.add_argument("--quick", action="store_true", help="little of everything: to see that it works")
    parser.add_argument("--alone", action="store_true", help="leave Dynamo out")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    # Only here: workloads are numpy's, which not every install has.
    from bench.index.rounds import FULL, QUICK, TrialError, measure
    from bench.index.service_trial import ServiceError

    plan = QUICK if args.quick else FULL
    plan = replace(plan, rounds=args.rounds or plan.rounds)
    dynamo = None if args.alone or not _DYNAMO.exists() else _DYNAMO
    if dynamo is None and not args.alone:
        _say("Dynamo is not there (`make peers`): ours is measured alone")
    try:
        for one in measure(plan, dynamo=dynamo, say=_say):
            print(as_json(one) if args.json else as_text(one), flush=True)
    except (TrialError, ServiceError) as error:
        _say(str(error))
        return 1
    return 0


def _say(line: str) -> None:
    print(f"bench index: {line}", file=sys.stderr)
