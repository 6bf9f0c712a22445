"""The command line of ``conformance``."""

from __future__ import annotations

from collections.abc import Sequence

from contract.endpoint import EndpointError, parse_tcp
from router.config import ConfigError, normalize_url
from router.conformance.command import ConformanceOptions
from router.conformance.listener import Target
from router.flags import PROGRAM, LineParser

__all__ = ["CONFORMANCE", "parse_conformance"]

CONFORMANCE = "conformance"
LONGEST_SECONDS = 3600.0
_LOCAL = ("ipc://",)


def parse_conformance(argv: Sequence[str]) -> ConformanceOptions:
    """The arguments of ``conformance``; exits with status 2 and one line on stderr where they make none."""
    parser = LineParser(
        prog=f"{PROGRAM} {CONFORMANCE}",
        description="Watch a publisher of KV events, whoever wrote it, and hold it to what routers rely on. Prints a "
        "line per rule: pass, fail with the first evidence, or not seen. Ends with status 0 where no rule failed, 1 "
        "where one did, 2 for a wrong command line.",
        allow_abbrev=False,
    )
    parser.add_argument("endpoint", metavar="tcp://HOST:PORT", help="where it publishes")
    parser.add_argument("--replay", metavar="tcp://HOST:PORT", help="where it answers replay requests")
    parser.add_argument("--server", metavar="URL", help="its engine server, asked for the width that it advertises")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to listen (default: 10)")
    parser.add_argument("--topic", default="", help="prefix to subscribe to (default: everything)")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON in place of lines")
    given = parser.parse_args(argv)
    if not 0 < given.seconds <= LONGEST_SECONDS:
        parser.error(f"--seconds must be above 0 and at most {LONGEST_SECONDS:g}, got {given.seconds:g}")
    try:
        target = Target(
            endpoint=_endpoint(given.endpoint),
            replay_endpoint=None if given.replay is None else _endpoint(given.replay),
            topic=given.topic,
        )
        server = None if given.server is None else normalize_url(given.server)
    except (EndpointError, ConfigError) as error:
        parser.error(str(error).replace("replica ", "--server ", 1))
    return ConformanceOptions(target=target, server=server, seconds=given.seconds, as_json=given.as_json)


def _endpoint(text: str) -> str:
    return text if text.startswith(_LOCAL) else str(parse_tcp(text))
