"""The command lines of ``check`` and ``top``."""

from __future__ import annotations

from collections.abc import Sequence

from router.config import ConfigError, RouterConfig, normalize_url
from router.config_file import read_config_file
from router.console.check import CheckOptions
from router.console.top import TopOptions
from router.flags import CONFIG_HELP, PROGRAM, LineParser

__all__ = ["CHECK", "TOP", "parse_check", "parse_top"]

CHECK, TOP = "check", "top"
LONGEST_SECONDS = 600.0
KEY_HELP = "key that the router asks its clients for"


def parse_check(argv: Sequence[str]) -> CheckOptions:
    """The arguments of ``check``; exits with status 2 and one line on stderr where they make none."""
    parser = LineParser(
        prog=f"{PROGRAM} {CHECK}",
        description="Join running replicas (or ask a router) and say which of them are silently at zero. "
        "Ends with status 0 where every replica's hits are found, 1 where one's are not, 2 for a wrong command line.",
        allow_abbrev=False,
    )
    parser.add_argument("urls", nargs="*", metavar="URL", help="base URL of an engine server, or of a kvsteer router")
    parser.add_argument("--config", metavar="FILE", help=CONFIG_HELP)
    parser.add_argument("--api-key", default="", help=KEY_HELP)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to listen (default: 5)")
    parser.add_argument("--probe", action="store_true", help="send each lane two equal prompts and compare")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON in place of a table")
    given = parser.parse_args(argv)
    if not 0 < given.seconds <= LONGEST_SECONDS:
        parser.error(f"--seconds must be above 0 and at most {LONGEST_SECONDS:g}, got {given.seconds:g}")
    try:
        in_file = {} if given.config is None else read_config_file(given.config)
        config = RouterConfig(**({"replicas": ()} | in_file | ({"replicas": tuple(given.urls)} if given.urls else {})))
    except ConfigError as error:
        parser.error(str(error).replace("--replica URL", "URL"))
    return CheckOptions(
        config=config, api_key=given.api_key, seconds=given.seconds, probe=given.probe, as_json=given.as_json
    )


def parse_top(argv: Sequence[str]) -> TopOptions:
    """The arguments of ``top``; exits as ``parse_check`` does."""
    parser = LineParser(
        prog=f"{PROGRAM} {TOP}", description="Watch a router's replicas. Ends at q.", allow_abbrev=False
    )
    parser.add_argument("url", metavar="URL", help="base URL of a kvsteer router")
    parser.add_argument("--api-key", default="", help=KEY_HELP)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two looks (default: 1)")
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    given = parser.parse_args(argv)
    if not 0 < given.interval <= LONGEST_SECONDS:
        parser.error(f"--interval must be above 0 and at most {LONGEST_SECONDS:g}, got {given.interval:g}")
    try:
        url = normalize_url(given.url)
    except ConfigError as error:
        parser.error(str(error).replace("replica ", "", 1))
    return TopOptions(url=url, api_key=given.api_key, interval=given.interval, once=given.once)
