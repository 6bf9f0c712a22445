"""The file of ``--config``: router options, and what is known of each replica beside its URL. YAML.

    policy: kv
    port: 8080
    replicas:
      - http://10.0.0.1:30000
      - url: http://10.0.0.2:8000
        engine: vllm
        endpoint: tcp://10.0.0.2:5557
        replay_endpoint: tcp://10.0.0.2:5558
        block_size: 64

Options are those of the command line, dashes or underscores; what the command line says wins.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from router.config import ConfigError, RouterConfig, normalize_url
from router.fleet.override import Override, OverrideError

__all__ = ["read_config_file"]

REPLICAS = "replicas"
MAX_FILE_BYTES = 1024 * 1024
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def read_config_file(path: str) -> dict[str, Any]:
    """Fields for ``RouterConfig``, as far as the file names them.

    Raises:
        ConfigError: in one line, naming the file, the key and the value.
    """
    fields = _load(path)
    types = _options()
    found: dict[str, Any] = {}
    for key, value in fields.items():
        name = str(key).replace("-", "_")
        if name == REPLICAS:
            found |= _replicas(path, value)
        elif name in types:
            found[name] = _choice(path, name, _convert(path, name, value, types[name]))
        else:
            raise ConfigError(f"{path}: unknown key {key!r}; known are {REPLICAS}, {', '.join(sorted(types))}")
    _check(path, found)
    return found


def _check(path: str, found: Mapping[str, Any]) -> None:
    """Whether a router could run with these, so that what is wrong with them names the file."""
    try:
        RouterConfig(**{REPLICAS: ("http://localhost",), **found})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _load(path: str) -> Mapping[Any, Any]:
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
        fields = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} must hold keys and values, got {type(fields).__name__}")
    return fields


def _options() -> dict[str, Any]:
    """Types of the options that a file may set, by name."""
    types = typing.get_type_hints(RouterConfig)
    names = (option.name for option in dataclasses.fields(RouterConfig) if option.metadata.get("in_file", True))
    return {name: types[name] for name in names if name != REPLICAS}


def _choice(path: str, name: str, value: Any) -> Any:
    choices = RouterConfig.__dataclass_fields__[name].metadata.get("choices")
    if choices is not None and value not in choices:
        raise ConfigError(f"{path}: {name} must be one of {', '.join(choices)}, got {value!r}")
    return value


def _replicas(path: str, value: object) -> dict[str, Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{path}: {REPLICAS} must be a list, got {value!r:.80}")
    overrides: dict[str, Override] = {}
    urls: list[str] = []
    for place, entry in enumerate(value):
        where = f"{REPLICAS}[{place}]"
        fields = {"url": entry} if isinstance(entry, str) else entry
        override: Override = _convert(path, where, fields, Override)
        try:
            override.check()
            url = normalize_url(override.url)
        except (OverrideError, ConfigError) as error:
            raise ConfigError(f"{path}: {where}: {error}") from None
        urls.append(url)
        overrides[url] = override
    return {REPLICAS: tuple(urls), "overrides": overrides}


def _convert(path: str, key: str, value: object, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        said, _, at = str(error).partition(" - at `$")
        steps = at.rstrip("`")
        raise ConfigError(f"{path}: {key}{steps}: {said}, got {_value_at(value, steps)!r:.80}") from None


def _value_at(value: Any, steps: str) -> Any:
    """The value that a message of msgspec's is about."""
    for name, place in _STEP.findall(steps):
        try:
            value = value[name] if name else value[int(place)]
        except (KeyError, IndexError, TypeError):
            break
    return value
