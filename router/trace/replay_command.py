"""``kvsteer-router trace replay FILE``: through the router's own streams and index, or to any router, over sockets."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import uvloop
from rich.table import Table

from program.stop_signals import on_stop_signals
from router.console.tables import NOTHING, console, or_nothing
from router.prompt import Prompt
from router.replay import LaneRecord, lane_record
from router.trace.pace import paced
from router.trace.reader import TraceReader, Unread
from router.trace.replayer import Replayer
from router.trace.saying import complain_of_damage, say
from router.trace.served_replay import ServeOptions, serve_trace

__all__ = ["ReplayOptions", "run_replay_trace", "run_serve_trace"]


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``speed`` as in ``paced``; ``prompt`` is looked up in the end."""

    file: Path
    speed: float
    prompt: Prompt | None
    as_json: bool


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` prints: lanes as ``replay`` and ``/index`` show them, and what each holds of the prompt."""

    file: str
    records: int
    torn: bool
    skipped: Sequence[Unread]
    seconds: float
    lanes: Mapping[str, LaneRecord]
    matched_tokens: Mapping[str, int] | None


def run_replay_trace(options: ReplayOptions) -> int:
    """Replay into an index of our own, and print what it holds; the exit status.

    Raises:
        TraceFileError: the trace cannot be read.
    """
    reader, replayer = TraceReader(options.file), Replayer()
    began = time.monotonic()
    records = asyncio.run(_feed(reader, replayer, options.speed))
    done = _replayed(reader, replayer, options, records=records, seconds=time.monotonic() - began)
    if options.as_json:
        sys.stdout.write(msgspec.json.encode(done).decode() + "\n")
    else:
        if done.lanes:
            console().print(_table(done, replayer))
        rate = f", {records / done.seconds:.0f} a second" if done.seconds else ""
        torn = ", and one that is cut off" if reader.torn else ""
        console().print(f"{records} records in {done.seconds:.2f} s{rate}{torn}", highlight=False)
    return complain_of_damage("trace replay", reader)


async def _feed(reader: TraceReader, replayer: Replayer, speed: float) -> int:
    records = 0
    async for record in paced(reader, speed=speed):
        replayer.feed(record)
        records += 1
    return records


def _replayed(
    reader: TraceReader, replayer: Replayer, options: ReplayOptions, *, records: int, seconds: float
) -> Replayed:
    index, lanes = replayer.index, replayer.lanes.values()
    matched = None
    if options.prompt is not None:
        found = index.match(options.prompt, [lane.handle for lane in lanes])
        matched = {str(lane.name): found[lane.handle].tokens for lane in lanes}
    return Replayed(
        file=str(reader.path),
        records=records,
        torn=reader.torn,
        skipped=reader.skipped,
        seconds=round(seconds, 3),
        lanes={str(lane.name): lane_record(index, lane.handle, lane.status) for lane in lanes},
        matched_tokens=matched,
    )


def _table(done: Replayed, replayer: Replayer) -> Table:
    table = Table()
    table.add_column("lane", no_wrap=True)
    table.add_column("stream")
    for heading in ("width", "last seq", "gaps", "lost", "rejected", "blocks", "matched"):
        table.add_column(heading, justify="right")
    for lane in replayer.lanes.values():
        record = done.lanes[str(lane.name)]
        counts = (record.last_seq, record.gaps, record.lost, record.rejected_events, len(record.blocks))
        matched = NOTHING if done.matched_tokens is None else str(done.matched_tokens[str(lane.name)])
        table.add_row(str(lane.name), lane.status.state, or_nothing(lane.width), *map(str, counts), matched)
    return table


def run_serve_trace(options: ServeOptions) -> int:
    """Serve the trace until SIGINT or SIGTERM; the exit status.

    Raises:
        TraceFileError: the trace cannot be read, or has nothing to play.
        PublishError, BindError: an address cannot be bound.
    """
    return uvloop.run(_serve(options))


async def _serve(options: ServeOptions) -> int:
    stop = on_stop_signals()
    await serve_trace(options, stop=stop, say=partial(say, "trace replay"))
    return 0
