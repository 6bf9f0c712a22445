"""What a person sees of a demo: a progress bar, the table, the ratios. Plain lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.report import PolicyReport, ReplicaRow, quotient

__all__ = ["comparison", "progress", "report_table"]

PLAIN_STEPS = 4
_COLUMNS = ("requests", "prompt tokens", "predicted hit", "reported hit", "TTFT p50")


@contextmanager
def progress(console: Console, label: str, *, total: int) -> Iterator[Callable[[], None]]:
    """Show how far a run is; yields what to call once for every request that ended."""
    if console.is_terminal:
        with _bar(console) as bar:
            task = bar.add_task(label, total=total)
            yield lambda: bar.advance(task)
    else:
        yield _plain_counter(console, label, total=total)


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def _plain_counter(console: Console, label: str, *, total: int) -> Callable[[], None]:
    """A line at every quarter."""
    marks = {total * step // PLAIN_STEPS for step in range(1, PLAIN_STEPS + 1)}
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if done in marks:
            console.print(f"{label}: {done} of {total} requests", highlight=False)

    return advance


def report_table(reports: Sequence[PolicyReport]) -> Table:
    """Every replica under every policy, and a total for each policy; fits 80 columns."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("policy", "replica"):
        table.add_column(name, no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", min_width=max(map(len, name.split())))
    for report in reports:
        for row in report.rows:
            table.add_row(report.policy, *_cells(row))
        table.add_row(report.policy, *_cells(report.total), style="bold", end_section=True)
    return table


def _cells(row: ReplicaRow) -> tuple[str, ...]:
    return (
        row.name.removeprefix("http://"),
        str(row.requests),
        str(row.prompt_tokens),
        _number(row.predicted_rate, "{:.1%}"),
        _number(row.reported_rate, "{:.1%}"),
        _milliseconds(row.ttft_p50),
    )


def comparison(base: PolicyReport, other: PolicyReport) -> str:
    """One line: what the other policy does to hit rate and TTFT."""
    ours, theirs = other.total, base.total
    hits = _number(quotient(ours.reported_rate, theirs.reported_rate), "{:.2f}")
    ttft = _number(quotient(ours.ttft_p50, theirs.ttft_p50), "{:.2f}")
    return (
        f"{other.policy} / {base.policy}: reported hit rate {_number(ours.reported_rate, '{:.1%}')} / "
        f"{_number(theirs.reported_rate, '{:.1%}')} = {hits}; TTFT p50 {_milliseconds(ours.ttft_p50)} / "
        f"{_milliseconds(theirs.ttft_p50)} = {ttft}"
    )


def _milliseconds(seconds: float | None) -> str:
    return _number(None if seconds is None else seconds * 1000, "{:.0f} ms")


def _number(value: float | None, layout: str) -> str:
    return "-" if value is None else layout.format(value)
