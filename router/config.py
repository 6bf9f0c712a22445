"""Everything a router is told before it starts. The one home of the defaults; command-line flags are made from it.

A config that exists is usable: addresses are URLs, numbers are in range. Nothing is bound, opened or asked here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from contract.endpoint import MAX_PORT
from router.choice.policy import POLICIES
from router.choice.send_ids import SendIds
from router.fleet.override import Override

__all__ = ["ConfigError", "RouterConfig", "normalize_url"]

NO_AFFINITY, BODY_AFFINITY = "off", "session_id"
_HEADER = re.compile(r"header:([A-Za-z0-9!#$%&'*+.^_`|~-]+)")
_MIB = 1024 * 1024
MAX_WORKERS = 256
_POSITIVE = (
    "probe_interval",
    "probe_timeout",
    "connect_timeout",
    "first_byte_timeout",
    "idle_timeout",
    "head_timeout",
    "body_timeout",
    "write_timeout",
    "max_body_bytes",
    "max_prompt_ids",
    "max_in_flight",
    "receipts",
)


class ConfigError(ValueError):
    """Something no router can run with; the message names the value and the limit."""


def _option(default: Any, text: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": text, **more})


@dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """One router process. Durations are in seconds. ``overrides`` is what is known of replicas beside their URLs.

    Raises:
        ConfigError: no replica, one that is no URL or is named twice, or a number out of range.
    """

    replicas: tuple[str, ...] = field(
        metadata={"help": "base URL of an engine server; give one for each replica", "flag": "replica"}
    )
    policy: str = _option("kv", "how a replica is chosen", choices=tuple(POLICIES))
    host: str = _option("127.0.0.1", "address to listen on")
    port: int = _option(8080, "port to listen on; 0 lets the system choose")
    workers: int = _option(
        1, "router processes that share the port; each has an index, limits, receipts and sessions of its own"
    )
    tokenizer: str = _option(
        "auto",
        "how text becomes token ids: auto (what a replica says of itself, else its /tokenize), byte, off, "
        "or a tokenizer.json or the folder it is in",
    )
    send_token_ids: str = _option(
        "auto",
        "send engines the ids of a text in its place: auto (when a replica has confirmed them), always, never",
        choices=tuple(SendIds),
    )
    affinity: str = _option(
        "off",
        "keep a session at its replica while that is cheap: off, session_id (a field of the body), or header:NAME",
    )
    affinity_seconds: float = _option(0.05, "what leaving its replica costs a session, in seconds")
    engine_load: bool = _option(False, "ask engines how busy they are, for what others than this router send them")
    seed: int = _option(0, "seed of every random choice")
    expose_replica: bool = _option(False, "name the replica in the X-KVSteer-Replica header of every answer")
    probe_interval: float = _option(1.0, "seconds between two looks at a replica")
    probe_timeout: float = _option(2.0, "seconds after which a probe has failed")
    connect_timeout: float = _option(5.0, "seconds to reach a replica")
    first_byte_timeout: float = _option(600.0, "seconds a replica may take to begin an answer")
    idle_timeout: float = _option(300.0, "seconds a replica may stay silent during an answer")
    head_timeout: float = _option(10.0, "seconds a client may take to send a request head")
    body_timeout: float = _option(30.0, "seconds a client may take to send a request body")
    write_timeout: float = _option(60.0, "seconds a client may leave an answer unread")
    max_body_bytes: int = _option(32 * _MIB, "largest request body")
    max_prompt_ids: int = _option(2 * 1024 * 1024, "most token ids in one request")
    max_in_flight: int = _option(4096, "requests taken at once, by each worker; more are answered 429")
    api_keys: tuple[str, ...] = _option((), "key that clients must send; give one for each key", flag="api-key")
    admin_key: str = _option("", "key that changes to the fleet need")
    replica_key: str = _option("", "key to send to replicas, in place of what a client sent")
    receipts: int = _option(1000, "requests that are remembered for /requests/ID, by each worker")
    trace_out: str = _option(
        "",
        "record events and routed requests to this .kvtrace file; one that exists goes on; of several workers, each "
        "records to one of its own: FILE.0.kvtrace, FILE.1.kvtrace, ...",
    )
    trace_tokens: bool = _option(False, "record the token ids of prompts too, not only their hashes")
    drain_timeout: float = _option(10.0, "seconds that running requests get to end after SIGTERM")
    overrides: Mapping[str, Override] = field(default_factory=dict, metadata={"flag": None, "in_file": False})
    log_level: str = _option("info", "least severe log line", choices=("debug", "info", "warning", "error"))

    def __post_init__(self) -> None:
        urls = self.urls
        if not urls:
            raise ConfigError("at least one --replica URL is needed")
        if twice := sorted({url for url in urls if urls.count(url) > 1}):
            raise ConfigError(f"replica {twice[0]} is named twice")
        if self.policy not in POLICIES:
            raise ConfigError(f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}")
        if not self.tokenizer:
            raise ConfigError("tokenizer must be auto, byte, off or a path, got an empty text")
        if self.send_token_ids not in tuple(SendIds):
            raise ConfigError(f"send_token_ids must be one of {', '.join(SendIds)}, got {self.send_token_ids!r}")
        if self.affinity not in (NO_AFFINITY, BODY_AFFINITY) and not _HEADER.fullmatch(self.affinity):
            raise ConfigError(f"affinity must be {NO_AFFINITY}, {BODY_AFFINITY} or header:NAME, got {self.affinity!r}")
        if not all(self.api_keys):
            raise ConfigError("an api key must not be empty")
        self._check_numbers()

    @property
    def session_header(self) -> str | None:
        """The header that names a session; None where the body does, or nothing."""
        found = _HEADER.fullmatch(self.affinity)
        return None if found is None else found[1]

    @property
    def urls(self) -> tuple[str, ...]:
        """The replicas' base URLs in their one spelling."""
        return tuple(normalize_url(url) for url in self.replicas)

    @property
    def loopback(self) -> bool:
        """Whether only this host can reach the router."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def _check_numbers(self) -> None:
        if not 0 <= self.port <= MAX_PORT:
            raise ConfigError(f"port must be in [0, {MAX_PORT}], got {self.port}")
        if not 1 <= self.workers <= MAX_WORKERS:
            raise ConfigError(f"workers must be in [1, {MAX_WORKERS}], got {self.workers}")
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("drain_timeout", "affinity_seconds"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")


def normalize_url(url: str) -> str:
    """One spelling of a replica's base URL: scheme, host and port, no trailing slash.

    Raises:
        ConfigError: not ``http(s)://HOST[:PORT]``, or with a path, a query or a user in it.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"replica {url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"replica {url!r} is not http://HOST:PORT")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        raise ConfigError(f"replica {url!r}: only scheme, host and port belong in a base URL")
    if port == 0:
        raise ConfigError(f"replica {url!r}: port 0 is nobody's")
    netloc = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{netloc}" + ("" if port is None else f":{port}")
