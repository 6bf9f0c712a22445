"""Command-line flags, made from ``EngineConfig``'s fields: name, type, default and help text are written there once.

What needs the machine to be understood is understood here: a host name becomes an address.
"""

from __future__ import annotations

import dataclasses
import socket
import typing
from collections.abc import Sequence
from types import UnionType
from typing import Any

import msgspec

from contract.endpoint import Address, bracket
from contract.kv_events_config import KVEventsConfig, KVEventsConfigError, parse_kv_events_config
from engine.config import ConfigError, EngineConfig
from engine.runner.sim_runner import SimTiming
from program.command_line import LineParser

__all__ = ["PROGRAM", "parse_flags"]

PROGRAM = "kvsteer-engine"
_SIM = "sim_"
_DEFAULT_EVENT_PORT = 5557  # SGLang's and vLLM's


def parse_flags(argv: Sequence[str]) -> EngineConfig:
    """The config of an engine process; exits with status 2 and one line on stderr when the flags make none."""
    parser = _parser()
    given = vars(parser.parse_args(argv))
    try:
        timing = SimTiming(**{name: given.pop(_SIM + name) for name in SimTiming.__struct_fields__})
        given["host"] = _numeric(given["host"])
        given["kv_events_config"] = _events(given["kv_events_config"], host=given["host"])
        return EngineConfig(sim=timing, **given)
    except (ConfigError, KVEventsConfigError, _HostError) as error:
        parser.error(str(error))
    except ValueError as error:  # SimTiming's
        parser.error(f"--sim flags: {error}")


def _parser() -> LineParser:
    parser = LineParser(
        prog=PROGRAM,
        description="Serve a model over HTTP, and publish what its prefix cache holds as KV events.",
        allow_abbrev=False,
    )
    types = typing.get_type_hints(EngineConfig)
    for option in dataclasses.fields(EngineConfig):
        if option.name != "sim":
            _add_option(parser, option, types[option.name])
    for name, default in msgspec.structs.asdict(SimTiming()).items():
        flag = "--" + (_SIM + name).replace("_", "-")
        parser.add_argument(flag, type=float, default=default, help=f"a cost of sim's clock (default: {default})")
    return parser


def _add_option(parser: LineParser, option: dataclasses.Field[Any], kind: type) -> None:
    names = ("--" + option.name.replace("_", "-"), *option.metadata.get("aliases", ()))
    default = "" if option.default is None else f" (default: {option.default})"
    parser.add_argument(
        *names,
        dest=option.name,
        type=_reader(kind),
        default=option.default,
        choices=option.metadata.get("choices"),
        help=option.metadata["help"] + default,
    )


def _reader(kind: type | UnionType) -> type:
    """What makes a value of a flag's text: an optional number is one where it is given, objects are read later."""
    if not isinstance(kind, UnionType):
        return kind
    return int if int in typing.get_args(kind) else str


class _HostError(ValueError):
    """A ``--host`` that is no address of anything."""


def _numeric(host: str) -> str:
    """The address a host name stands for, IPv4 where it has one: sockets of every kind can then be given the same."""
    try:
        found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM) if host else []
    except (OSError, UnicodeError):
        found = []
    if not found:
        raise _HostError(f"--host {host!r} is no address and no name that can be resolved")
    return str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def _events(text: str | None, *, host: str) -> KVEventsConfig | None:
    """The events config; one that names no endpoint listens where the engine does, not on every interface."""
    if text is None:
        return None
    config = parse_kv_events_config(text)
    if "endpoint" in msgspec.json.decode(text):
        return config
    endpoint = str(Address(bracket(host), _DEFAULT_EVENT_PORT))
    return msgspec.structs.replace(config, endpoint=endpoint, bind=True)
