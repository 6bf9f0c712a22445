"""``kvsteer-router trace show FILE``: what a trace holds, lane by lane and in time."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from router.console.tables import NOTHING, console, or_nothing
from router.trace.reader import TraceReader
from router.trace.saying import complain_of_damage
from router.trace.summary import LaneTotals, TraceSummary, summarize
from router.trace.timeline import Span

__all__ = ["ShowOptions", "run_show"]

_LANE_HEADINGS = (
    *("stream", "width", "batches", "stored", "removed", "held", "gaps", "lost", "restarts", "bytes"),
    *("requests", "prompt", "predicted", "reported"),
)
_SPAN_HEADINGS = ("batches", "stored", "removed", "requests", "predicted", "reported")


class ShowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which file, and how to say it."""

    file: Path
    as_json: bool


def run_show(options: ShowOptions) -> int:
    """Print the trace; the exit status.

    Raises:
        TraceFileError: it cannot be read.
    """
    reader = TraceReader(options.file)
    summary = summarize(reader)
    status = complain_of_damage("trace show", reader)
    if options.as_json:
        sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
    else:
        _print(summary)
    return status


def _print(summary: TraceSummary) -> None:
    out = console()
    out.print(_headline(summary), soft_wrap=True, highlight=False)
    for table in (_lanes(summary), _timeline(summary)):
        if table.row_count:
            out.print(table, soft_wrap=True)
    for moment in summary.moments:
        out.print(Text(f"{moment.at:10.3f} s  {moment.what}"), soft_wrap=True)
    if summary.moments_unsaid:
        out.print(f"and {summary.moments_unsaid} more")


def _headline(summary: TraceSummary) -> str:
    if summary.first is None or summary.last is None:
        return f"{escape(summary.file)}: {summary.bytes} bytes, no record"
    begin = datetime.fromtimestamp(summary.first, tz=UTC).isoformat(sep=" ", timespec="seconds")
    torn = ", the last one cut off" if summary.torn else ""
    lost = f", {summary.unrouted} requests of a workload" if summary.unrouted else ""
    return (
        f"{escape(summary.file)}: {summary.records} records in {summary.bytes} bytes{torn}, "
        f"{summary.last - summary.first:.1f} s from {begin}{lost}"
    )


def _lanes(summary: TraceSummary) -> Table:
    table = Table()
    table.add_column("lane", no_wrap=True)
    for heading in _LANE_HEADINGS:
        table.add_column(heading, justify="left" if heading == "stream" else "right", no_wrap=True)
    for lane in summary.lanes:
        table.add_row(*_cells(lane))
    return table


def _cells(lane: LaneTotals) -> Iterable[str]:
    yield f"{escape(lane.url)}#{lane.dp_rank}"
    yield lane.stream
    yield _width(lane)
    for count in (lane.batches, lane.stored, lane.removed, lane.blocks, lane.gaps, lane.lost, lane.restarts):
        yield str(count)
    for count in (lane.bytes, lane.requests):
        yield str(count)
    for tokens in (lane.prompt_tokens, lane.predicted, lane.reported):
        yield str(tokens) if lane.told else NOTHING


def _width(lane: LaneTotals) -> str:
    """What was advertised, and what was sent where that is something else."""
    sent = ", ".join(map(str, lane.emitted_block_sizes))
    said = or_nothing(lane.advertised_block_size)
    if lane.advertised_block_size is None:
        return sent or said
    return said if sent in ("", said) else f"{said} said, {sent} sent"


def _timeline(summary: TraceSummary) -> Table:
    table = Table(f"from, {summary.span_seconds:g} s each")
    for heading in _SPAN_HEADINGS:
        table.add_column(heading, justify="right")
    for span in summary.spans:
        table.add_row(f"{span.start:g} s", *(str(count) for count in _counts(span)))
    return table


def _counts(span: Span) -> Iterable[int]:
    return (getattr(span, heading) for heading in _SPAN_HEADINGS)
