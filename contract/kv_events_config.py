"""``--kv-events-config``: the JSON object that turns an engine's KV events on, as SGLang 0.5.23 reads it."""

from __future__ import annotations

import msgspec

from contract.events import Dialect

__all__ = ["KVEventsConfig", "KVEventsConfigError", "parse_kv_events_config"]

_MAX_BOUND = 2**31 - 1  # ZMQ's marks are C ints


class KVEventsConfigError(ValueError):
    """A ``--kv-events-config`` that cannot be read; the message names the field."""


class KVEventsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how a publisher sends. Unknown keys are ignored, as SGLang ignores them.

    ``max_queue_size`` bounds how many batches may wait to be sent, ``buffer_steps`` how many are kept for replay, both
    in batches; ``hwm`` is ZMQ's high-water mark in messages for each subscriber. ``dialect`` is ours: whose words the
    events are in, for consumers that read one engine's only.
    """

    publisher: str = "null"
    endpoint: str = "tcp://*:5557"
    bind: bool | None = None
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""
    dialect: Dialect = Dialect.SGLANG

    @property
    def enabled(self) -> bool:
        """Whether events leave the engine at all."""
        return self.publisher != "null"


def parse_kv_events_config(text: str) -> KVEventsConfig:
    """Read the JSON text of the flag.

    Raises:
        KVEventsConfigError: not JSON, not an object, a field of the wrong type, or a bound outside [1, 2**31).
    """
    try:
        config = msgspec.json.decode(text, type=KVEventsConfig)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise KVEventsConfigError(f"--kv-events-config: {error}") from None
    except RecursionError:
        raise KVEventsConfigError("--kv-events-config: nested too deeply") from None
    for name in ("buffer_steps", "hwm", "max_queue_size"):
        if not 1 <= (bound := getattr(config, name)) <= _MAX_BOUND:
            limits = "at least 1" if bound < 1 else f"at most {_MAX_BOUND}"
            raise KVEventsConfigError(f"--kv-events-config: {name} must be {limits}, got {bound}")
    return config
