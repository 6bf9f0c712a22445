"""Sockets and publishers that are gone when the test is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from publisher_peers import Peers

from contract.kv_events_config import KVEventsConfig
from publisher import EventPublisher


@pytest.fixture
def peers() -> Iterator[Peers]:
    """The far ends of the test."""
    peers = Peers()
    yield peers
    peers.close()


@pytest.fixture
def start() -> Iterator[Callable[..., EventPublisher]]:
    """Start publishers; config fields and publisher arguments alike are given by name."""
    started: list[EventPublisher] = []

    def start(**fields: Any) -> EventPublisher:
        local = {
            "publisher": "zmq",
            "endpoint": "tcp://127.0.0.1:0",
            "replay_endpoint": "tcp://127.0.0.1:0",
            "bind": True,
        }
        named = set(KVEventsConfig.__struct_fields__) - {"dialect"}  # which the publisher is told by whoever makes it
        config = local | {name: fields.pop(name) for name in named & set(fields)}
        started.append(EventPublisher(msgspec.convert(config, KVEventsConfig), **fields))
        return started[-1]

    yield start
    for publisher in started:
        publisher.close()
        assert not publisher.alive
