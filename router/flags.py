"""Command-line flags, made from ``RouterConfig``'s fields: name, type, default and help text are written there once."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

import program.command_line
from router.config import ConfigError, RouterConfig
from router.config_file import read_config_file
from router.replay import add_replay_command

__all__ = ["CONFIG_HELP", "PROGRAM", "REPLAY", "SERVE", "LineParser", "parse_replay", "parse_serve"]

PROGRAM = "kvsteer-router"
SERVE, REPLAY = "serve", "replay"
CONFIG_HELP = "YAML file of options and replicas; what the command line says wins"
_OTHER_COMMANDS = (
    f"Other commands (see their --help): `{PROGRAM} {REPLAY} FILE` feeds recorded frames through the index; "
    f"`{PROGRAM} check URL...` says which replicas are silently at zero; `{PROGRAM} top URL` watches a router; "
    f"`{PROGRAM} conformance tcp://HOST:PORT` judges a publisher of KV events; `{PROGRAM} trace` records a fleet, "
    "replays it, and asks what else could have been done."
)


class LineParser(program.command_line.LineParser):
    """All commands complain in the router's name."""

    program = PROGRAM


def parse_serve(argv: Sequence[str]) -> RouterConfig:
    """The config of a router; exits with status 2 and one line on stderr when the flags make none."""
    parser = _serve_parser()
    given: dict[str, Any] = vars(parser.parse_args(argv))
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    path = given.pop("config")
    try:
        in_file = {} if path is None else read_config_file(path)
        return RouterConfig(**{"replicas": (), **in_file, **given})
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
    parser.add_argument("--config", metavar="FILE", help=CONFIG_HELP)
    types = typing.get_type_hints(RouterConfig)
    for option in dataclasses.fields(RouterConfig):
        if option.metadata.get("flag", option.name) is not None:
            _add_option(parser, option, types[option.name])
    return parser


def _add_option(parser: LineParser, option: dataclasses.Field[object], kind: type) -> None:
    """What is not given stays out of the result, so that a file's value can stand in for it."""
    text = option.metadata["help"]
    name = "--" + option.metadata.get("flag", option.name).replace("_", "-")
    if typing.get_origin(kind) is tuple:
        parser.add_argument(name, dest=option.name, action="append", default=argparse.SUPPRESS, help=text)
        return
    if kind is bool:
        parser.add_argument(name, action="store_true", default=argparse.SUPPRESS, help=text)
        return
    parser.add_argument(
        name,
        type=kind,
        default=argparse.SUPPRESS,
        choices=option.metadata.get("choices"),
        help=f"{text} (default: {option.default or 'none'})" if kind is str else f"{text} (default: {option.default})",
    )
