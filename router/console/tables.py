"""How ``check`` and ``top`` look: tables for a terminal, plain text where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from router.console.verdict import LaneVerdict, ReplicaVerdict, Verdict
from router.front.views import FleetView, LaneView, ReplicaView

__all__ = ["NOTHING", "console", "fleet_frame", "or_nothing", "print_verdicts"]

_STYLES = {
    Verdict.HEALTHY: "green",
    Verdict.WARNING: "yellow",
    Verdict.AT_ZERO: "bold red",
    Verdict.FAILING: "bold red",
    Verdict.AWAY: "bold red",
}
NOTHING = "-"
PIPE_WIDTH = 160


def console() -> Console:
    """A console; where output is no terminal its lines are long enough for a table."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=max(PIPE_WIDTH, plain.width))


def print_verdicts(verdicts: Sequence[ReplicaVerdict]) -> None:
    """A row a lane, and under the table every finding with what to do about it."""
    out = console()
    table = Table("replica", "engine", "rank", "stream", "advertised", "emitted", "blocks", "probe", "verdict")
    for verdict in verdicts:
        for row in _verdict_rows(verdict):
            table.add_row(*row)
    out.print(table)
    for verdict in verdicts:
        for line in _sentences(verdict):
            out.print(line, soft_wrap=True)


def _verdict_rows(verdict: ReplicaVerdict) -> Iterable[Sequence[RenderableType]]:
    codes = ", ".join(dict.fromkeys(finding.code.value for finding in verdict.findings))
    said = Text(f"{verdict.verdict}: {codes}" if codes else verdict.verdict, style=_STYLES[verdict.verdict])
    name, engine = escape(verdict.url), verdict.engine or NOTHING
    if not verdict.lanes:
        yield name, engine, *[NOTHING] * 6, said
    for lane in verdict.lanes:
        yield name, engine, *_verdict_cells(lane), said
        name, engine, said = "", "", Text()


def _verdict_cells(lane: LaneVerdict) -> list[str]:
    probe = NOTHING if lane.predicted is None else f"{lane.predicted} predicted, {or_nothing(lane.reported)} found"
    return [
        str(lane.dp_rank),
        lane.stream,
        or_nothing(lane.advertised_block_size),
        or_nothing(lane.emitted_block_size),
        str(lane.blocks),
        probe,
    ]


def _sentences(verdict: ReplicaVerdict) -> Iterable[Text]:
    for finding in verdict.findings:
        yield Text(f"{verdict.url}: {finding.code}: {finding.detail}. To do: {finding.advice}.")
    for note in verdict.notes:
        yield Text(f"{verdict.url}: {note}")


def fleet_frame(fleet: FleetView, *, title: str) -> RenderableType:
    """One frame of ``top``: a row a replica and a row a lane, and every fault."""
    table = Table(title=title, title_justify="left")
    for heading in ("replica", "engine", "state", "routed", "in flight", "queued", "predicted", "reported"):
        table.add_column(heading, justify="left" if heading in ("replica", "engine", "state") else "right")
    for heading in ("stream", "width", "blocks", "event age", "gaps", "lost"):
        table.add_column(heading, justify="left" if heading == "stream" else "right")
    for replica in fleet.replicas:
        table.add_row(*_replica_cells(replica))
        for lane in replica.lanes:
            table.add_row(*_lane_cells(lane))
    return Group(table, *_faults(fleet))


def _replica_cells(replica: ReplicaView) -> list[str]:
    rates = replica.hit_rate
    requests = replica.requests
    return [
        escape(replica.url),
        replica.engine or NOTHING,
        replica.state,
        str(requests.routed),
        str(requests.in_flight),
        str(sum(lane.queued_tokens for lane in replica.lanes)),
        _percent(rates.predicted),
        _percent(rates.reported),
    ]


def _lane_cells(lane: LaneView) -> list[str]:
    window = lane.window
    predicted = window.predicted_hit / window.prompt if window.prompt else None
    reported = window.reported_hit / window.prompt if window.prompt else None
    return [
        f"  rank {lane.dp_rank}",
        "",
        "",
        "",
        str(lane.in_flight),
        str(lane.queued_tokens),
        _percent(predicted),
        _percent(reported),
        lane.stream,
        or_nothing(lane.emitted_block_size or lane.advertised_block_size),
        str(sum(lane.blocks.values())),
        NOTHING if lane.event_age is None else f"{lane.event_age:.1f} s",
        str(lane.gaps),
        str(lane.lost),
    ]


def _faults(fleet: FleetView) -> Iterable[Text]:
    for replica in fleet.replicas:
        for fault in replica.faults:
            style = "bold red" if fault.code.blinding else "yellow"
            yield Text(f"{replica.url}: {fault.code}: {fault.detail}. To do: {fault.advice}.", style=style)


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.1%}"


def or_nothing(value: int | None) -> str:
    """A number, or the mark for none."""
    return NOTHING if value is None else str(value)
