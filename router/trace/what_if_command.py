"""``kvsteer-router trace what-if FILE``: prints what other rules and widths would have done, beside what was done."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from router.console.tables import NOTHING, console
from router.trace.chunk import TraceFileError
from router.trace.reader import TraceReader
from router.trace.saying import complain_of_damage
from router.trace.what_if import Outcome, WhatIf, what_if

__all__ = ["WhatIfOptions", "run_what_if"]

COMMAND = "trace what-if"
UNHEARD = (
    "No lane's events show any of these: were its streams heard, and are prompts hashed at its width? See `trace show`."
)


class WhatIfOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which rules to ask, as they are and at each of ``block_sizes``; ``seed`` of every random choice."""

    file: Path
    policies: Sequence[str]
    block_sizes: Sequence[int]
    seed: int
    as_json: bool


def run_what_if(options: WhatIfOptions) -> int:
    """Print the comparison; the exit status.

    Raises:
        TraceFileError: the trace cannot be read, or has no request that can be compared.
        WidthError: its prompts cannot be looked up at one of the widths.
    """
    reader = TraceReader(options.file)
    found = what_if(reader, policies=options.policies, block_sizes=options.block_sizes, seed=options.seed)
    status = complain_of_damage(COMMAND, reader)
    if not found.outcomes[0].requests:
        raise TraceFileError(
            f"{options.file} has no routed request whose prompt is known; record with kvsteer-router serve --trace-out"
        )
    if options.as_json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    else:
        _print(found)
    return status


def _print(found: WhatIf) -> None:
    out = console()
    out.print(_table(found.outcomes))
    if found.told:
        share = found.reported / max(found.told_prompt_tokens, 1)
        out.print(
            f"Engines reported {found.reported} cached tokens ({share:.1%}) of {found.told} requests.", highlight=False
        )
        if found.reported and not found.outcomes[0].held:
            out.print(UNHEARD, soft_wrap=True, highlight=False)
    if found.unknown:
        out.print(f"{found.unknown} more requests had no known prompt, or no lane.", highlight=False)
    out.print(found.note, soft_wrap=True, highlight=False)


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table("rule", "hashes at")
    for heading in ("requests", "prompt tokens", "hit seen", "hit there was", "same lane", "busiest lane"):
        table.add_column(heading, justify="right")
    for one in outcomes:
        table.add_row(
            one.rule,
            "each lane's width" if one.block_size is None else f"{one.block_size}",
            str(one.requests),
            str(one.prompt_tokens),
            _tokens(one.seen, one.prompt_tokens),
            _tokens(one.held, one.prompt_tokens),
            f"{one.agreed / one.requests:.1%}" if one.requests else NOTHING,
            f"{one.busiest:.1%}",
        )
    return table


def _tokens(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else str(part)
