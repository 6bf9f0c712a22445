"""The command lines of ``trace``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from contract.endpoint import MAX_PORT, EndpointError, parse_tcp
from router.config import ConfigError, RouterConfig
from router.config_file import read_config_file
from router.flags import CONFIG_HELP, PROGRAM, LineParser
from router.front.server import BindError
from router.replay import cannot_print, token_ids
from router.trace.chunk import TraceFileError
from router.trace.convert_command import FRAMES, KINDS, KVTRACE, MOONCAKE, ConvertOptions, run_convert
from router.trace.merge import merged
from router.trace.new_file import write_trace
from router.trace.publication import PublishError
from router.trace.reader import TraceReader
from router.trace.record_command import RecordOptions, run_record
from router.trace.recorded_prompt import WidthError
from router.trace.redaction import redacted
from router.trace.replay_command import ReplayOptions, run_replay_trace, run_serve_trace
from router.trace.saying import complain_of_damage
from router.trace.secret import Secret
from router.trace.served_replay import ServeOptions
from router.trace.show_command import ShowOptions, run_show
from router.trace.what_if import RULES
from router.trace.what_if_command import WhatIfOptions, run_what_if

__all__ = ["TRACE", "run_trace"]

TRACE = "trace"
LONGEST_SECONDS = 30 * 86_400.0
FASTEST = 1_000_000.0
LARGEST_BLOCK = 1_000_000
"""Tokens; no engine takes a prompt of so many."""

_FILE_HELP = "a .kvtrace file"


def run_trace(argv: Sequence[str]) -> int:
    """Carry out a subcommand of ``trace``; the exit status: 1 where a trace cannot be read or written."""
    parser, subparsers = _trace_parser()
    given = parser.parse_args(argv)
    run: Callable[[LineParser, argparse.Namespace], int] = given.run
    try:
        return run(subparsers[given.what], given)
    except (TraceFileError, WidthError, PublishError, BindError) as error:
        print(f"{PROGRAM} {TRACE} {given.what}: {error}", file=sys.stderr)
        if getattr(given, "as_json", False):
            print(msgspec.json.encode({"error": str(error)}).decode())
        return 1
    except OSError as error:
        return cannot_print(f"{TRACE} {given.what}", error)


def _trace_parser() -> tuple[LineParser, dict[str, LineParser]]:
    parser = LineParser(
        prog=f"{PROGRAM} {TRACE}",
        description="Record what a fleet shows, look at it, replay it, and ask what else could have been done.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="what", required=True, metavar="COMMAND", parser_class=LineParser)
    added: dict[str, LineParser] = {}
    for name, (add, run, text) in _COMMANDS.items():
        added[name] = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        added[name].set_defaults(run=run)
        add(added[name])
    return parser, added


def _add_record(parser: LineParser) -> None:
    parser.add_argument("--replica", nargs="+", action="extend", metavar="URL", help="base URL of an engine server")
    parser.add_argument("--config", metavar="FILE", help=CONFIG_HELP)
    parser.add_argument("--seconds", type=float, help="end after so long (default: at SIGINT or SIGTERM)")
    parser.add_argument("--batches", type=int, help="end after so many batches of events")
    parser.add_argument("out", nargs="?", metavar="OUT.kvtrace", help="a trace that exists is gone on with")


def _record(parser: LineParser, given: argparse.Namespace) -> int:
    replicas = list(given.replica or ())
    out = given.out
    if out is None and replicas and "://" not in replicas[-1]:
        out = replicas.pop()  # `--replica URL... OUT.kvtrace`: the last word is no URL
    if out is None:
        parser.error("OUT.kvtrace is missing: where to record to")
    if given.seconds is not None and not 0 < given.seconds <= LONGEST_SECONDS:
        parser.error(f"--seconds must be above 0 and at most {LONGEST_SECONDS:g}, got {given.seconds:g}")
    if given.batches is not None and given.batches < 1:
        parser.error(f"--batches must be at least 1, got {given.batches}")
    try:
        in_file = {} if given.config is None else read_config_file(given.config)
        named = {"replicas": tuple(replicas)} if replicas else {}
        config = RouterConfig(**({"replicas": ()} | in_file | named))
    except ConfigError as error:
        parser.error(str(error))
    return run_record(RecordOptions(config=config, file=Path(out), seconds=given.seconds, batches=given.batches))


def _add_show(parser: LineParser) -> None:
    parser.add_argument("file", type=Path, help=_FILE_HELP)
    parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON in place of tables")


def _show(parser: LineParser, given: argparse.Namespace) -> int:
    return run_show(ShowOptions(file=given.file, as_json=given.as_json))


def _add_what_if(parser: LineParser) -> None:
    parser.add_argument("file", type=Path, help=_FILE_HELP)
    parser.add_argument(
        "--policy", nargs="+", action="extend", choices=tuple(RULES), help="a rule to ask (default: all of them)"
    )
    parser.add_argument(
        "--block-size", nargs="+", action="extend", type=int, metavar="N", help="ask once more, hashing at N tokens"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of every random choice (default: 0)")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON in place of a table")


def _what_if(parser: LineParser, given: argparse.Namespace) -> int:
    sizes = tuple(given.block_size or ())
    if wrong := [size for size in sizes if not 1 <= size <= LARGEST_BLOCK]:
        parser.error(f"--block-size must be in [1, {LARGEST_BLOCK}], got {wrong[0]}")
    options = WhatIfOptions(
        file=given.file,
        policies=tuple(dict.fromkeys(given.policy or RULES)),
        block_sizes=tuple(dict.fromkeys(sizes)),
        seed=given.seed,
        as_json=given.as_json,
    )
    return run_what_if(options)


def _add_replay(parser: LineParser) -> None:
    parser.add_argument("file", type=Path, help=_FILE_HELP)
    parser.add_argument(
        "--speed", type=float, default=0.0, help="1.0: at the recorded times; 0: as fast as it goes (default)"
    )
    parser.add_argument("--prompt", type=token_ids, metavar="IDS", help="JSON list of token ids to look up in the end")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON in place of a table")
    parser.add_argument(
        "--serve",
        metavar="tcp://HOST:PORT",
        help="publish it instead, a port a lane from this one on, replays behind them, and HTTP for each replica, so "
        "that a router can be pointed at it; port 0: the system chooses",
    )
    parser.add_argument("--http-port", type=int, default=0, help="first HTTP port (default: the system chooses)")


def _replay(parser: LineParser, given: argparse.Namespace) -> int:
    if not 0 <= given.speed <= FASTEST:
        parser.error(f"--speed must be in [0, {FASTEST:g}], got {given.speed:g}")
    if given.serve is None:
        return run_replay_trace(
            ReplayOptions(file=given.file, speed=given.speed, prompt=given.prompt, as_json=given.as_json)
        )
    if not 0 <= given.http_port <= MAX_PORT:
        parser.error(f"--http-port must be in [0, {MAX_PORT}], got {given.http_port}")
    try:
        address = parse_tcp(given.serve)
    except EndpointError as error:
        parser.error(f"--serve: {error}")
    return run_serve_trace(ServeOptions(file=given.file, address=address, http_port=given.http_port, speed=given.speed))


def _add_convert(parser: LineParser) -> None:
    parser.add_argument("source", type=Path, metavar="IN", help="a .kvtrace, or JSON lines: frames, or a workload")
    parser.add_argument("target", type=Path, metavar="OUT", help="what is not there yet; a name in .gz is gzipped")
    parser.add_argument("--to", choices=KINDS, help=f"what to make (default: {KVTRACE}, where OUT has that suffix)")
    parser.add_argument("--replica", metavar="URL", help="whose frames to write, where several were recorded")


def _convert(parser: LineParser, given: argparse.Namespace) -> int:
    kind = given.to or (KVTRACE if given.target.suffix == f".{KVTRACE}" else None)
    if kind is None:
        parser.error(f"--to is needed: {given.target.name} could be {FRAMES} or {MOONCAKE}")
    return run_convert(ConvertOptions(source=given.source, target=given.target, kind=kind, replica=given.replica))


def _add_redact(parser: LineParser) -> None:
    parser.add_argument("source", type=Path, metavar="IN", help=_FILE_HELP)
    parser.add_argument("target", type=Path, metavar="OUT", help="what is not there yet")


def _redact(parser: LineParser, given: argparse.Namespace) -> int:
    reader = TraceReader(given.source)
    write_trace(redacted(reader, Secret()), given.target)
    return complain_of_damage(f"{TRACE} redact", reader)


def _add_merge(parser: LineParser) -> None:
    parser.add_argument("sources", type=Path, nargs="+", metavar="IN", help="traces of the workers of one router")
    parser.add_argument("target", type=Path, metavar="OUT", help="what is not there yet")


def _merge(parser: LineParser, given: argparse.Namespace) -> int:
    readers = [TraceReader(source) for source in given.sources]
    write_trace(merged(readers), given.target)
    return max(complain_of_damage(f"{TRACE} merge", reader) for reader in readers)


_COMMANDS = {
    "record": (_add_record, _record, "Watch replicas as a router does, and write down what they show."),
    "replay": (_add_replay, _replay, "Replay a trace through streams and index, or to any router over sockets."),
    "convert": (_add_convert, _convert, "Turn traces into JSON lines of frames or Mooncake-format workloads, or back."),
    "merge": (_add_merge, _merge, "One trace of what several workers of a router recorded."),
    "redact": (_add_redact, _redact, "Copy a trace without what was asked: other ids and hashes, equal for equal."),
    "what-if": (_add_what_if, _what_if, "What other rules and widths would have done on the recorded requests."),
    "show": (_add_show, _show, "What a trace holds, lane by lane and in time."),
}
