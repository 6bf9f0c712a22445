"""Command-line flags, made from ``RouterConfig``'s fields: name, type, default and help text are written there once."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import typing
from collections.abc import Sequence
from typing import Any, NoReturn

from router.config import ConfigError, RouterConfig
from router.replay import add_replay_command

__all__ = ["BAD_FLAGS_STATUS", "PROGRAM", "REPLAY", "SERVE", "LineParser", "parse_replay", "parse_serve"]

PROGRAM = "kvsteer-router"
SERVE, REPLAY = "serve", "replay"
BAD_FLAGS_STATUS = 2
_OTHER_COMMANDS = f"Other commands: `{PROGRAM} {REPLAY} FILE` feeds recorded frames through the index (see its --help)."


class LineParser(argparse.ArgumentParser):
    """Ends with one line that says what is wrong, and with status 2, where argparse would print its usage too."""

    def error(self, message: str) -> NoReturn:
        """Complain on stderr and exit."""
        print(f"{PROGRAM}: error: {' '.join(message.split())}", file=sys.stderr)
        sys.exit(BAD_FLAGS_STATUS)


def parse_serve(argv: Sequence[str]) -> RouterConfig:
    """The config of a router; exits with status 2 and one line on stderr when the flags make none."""
    parser = _serve_parser()
    given: dict[str, Any] = vars(parser.parse_args(argv))
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    try:
        return RouterConfig(**given)
    except ConfigError as error:
        parser.error(str(error))


def parse_replay(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of ``replay``, for ``run_replay``; exits as ``parse_serve`` does."""
    parser = LineParser(prog=PROGRAM, allow_abbrev=False)
    add_replay_command(parser.add_subparsers(parser_class=LineParser))
    return parser.parse_args([REPLAY, *argv])


def _serve_parser() -> LineParser:
    parser = LineParser(
        prog=f"{PROGRAM} [{SERVE}]",
        description="Route OpenAI-shaped requests to the replica that holds most of their prompt in its cache.",
        epilog=_OTHER_COMMANDS,
        allow_abbrev=False,
    )
    types = typing.get_type_hints(RouterConfig)
    for option in dataclasses.fields(RouterConfig):
        _add_option(parser, option, types[option.name])
    return parser


def _add_option(parser: LineParser, option: dataclasses.Field[object], kind: type) -> None:
    text = option.metadata["help"]
    name = "--" + option.metadata.get("flag", option.name).replace("_", "-")
    if typing.get_origin(kind) is tuple:
        parser.add_argument(name, dest=option.name, action="append", default=[], help=text)
        return
    if kind is bool:
        parser.add_argument(name, action="store_true", default=option.default, help=text)
        return
    parser.add_argument(
        name,
        type=kind,
        default=option.default,
        choices=option.metadata.get("choices"),
        help=f"{text} (default: {option.default or 'none'})" if kind is str else f"{text} (default: {option.default})",
    )
