from __future__ import annotations

import pytest

from contract.endpoint import Address, EndpointError, binds, for_rank, needs_ipv6, parse_tcp


@pytest.mark.parametrize(
    ("endpoint", "rank", "expected"),
    [
        ("tcp://*:5557", 0, "tcp://*:5557"),
        ("tcp://*:5557", 3, "tcp://*:5560"),
        ("tcp://[::]:5557", 1, "tcp://[::]:5558"),
        ("tcp://*:0", 2, "tcp://*:0"),
        ("inproc://kv", 0, "inproc://kv"),
        ("inproc://kv", 1, "inproc://kv_dp1"),
        ("ipc:///tmp/kv", 2, "ipc:///tmp/kv_dp2"),
    ],
)
def test_every_rank_has_an_endpoint_of_its_own(endpoint: str, rank: int, expected: str) -> None:
    assert for_rank(endpoint, rank) == expected


def test_a_rank_past_the_last_port_is_refused_with_the_numbers() -> None:
    with pytest.raises(EndpointError, match="rank 2 is port 65537, above 65535"):
        for_rank("tcp://*:65535", 2)


@pytest.mark.parametrize(
    ("endpoint", "bind", "expected"),
    [
        ("tcp://*:5557", None, True),
        ("tcp://0.0.0.0:5557", None, True),
        ("tcp://[::]:5557", None, True),
        ("ipc:///tmp/kv", None, True),
        ("inproc://kv", None, True),
        ("tcp://127.0.0.1:5557", None, False),
        ("tcp://127.0.0.1:5557", True, True),
        ("tcp://*:5557", False, False),
    ],
)
def test_who_binds(endpoint: str, bind: bool | None, expected: bool) -> None:
    assert binds(endpoint, bind) is expected


def test_tcp_endpoints_are_taken_apart() -> None:
    assert parse_tcp("tcp://[::1]:5557") == Address("[::1]", 5557)
    assert str(parse_tcp("tcp://*:0")) == "tcp://*:0"
    assert needs_ipv6("tcp://[::1]:5557")
    assert not needs_ipv6("tcp://*:5557")


@pytest.mark.parametrize(
    "bad", ["udp://h:1", "tcp://h", "tcp://:5", "tcp://::1:5557", "tcp://h:65536", "tcp://h:x", ""]
)
def test_what_is_no_tcp_endpoint_is_refused_by_name(bad: str) -> None:
    with pytest.raises(EndpointError):
        parse_tcp(bad)
