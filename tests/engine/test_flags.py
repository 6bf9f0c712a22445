"""Command line to config: defaults, derived ports, and one clear line for everything that cannot work."""

from __future__ import annotations

import dataclasses
import json
import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.endpoint import for_rank, parse_tcp
from contract.kv_events_config import KVEventsConfig
from engine.config import ConfigError, EngineConfig
from engine.flags import parse_flags
from engine.model.catalogue import find_model
from engine.runner.sim_runner import SimTiming


def events(**fields: object) -> tuple[str, str]:
    return "--kv-events-config", json.dumps({"publisher": "zmq", **fields})


def test_no_flags_give_the_config_s_own_defaults() -> None:
    assert parse_flags([]) == EngineConfig()


def test_flags_carry_sglang_s_names() -> None:
    line = (
        "--model-path sim --served-model-name m --page-size 3 --tp-size 4 --dcp-size 2 --dp-size 5 --host 127.0.0.2 "
        "--port 0 --context-length 77 --max-total-tokens 88 --max-running-requests 9 --chunked-prefill-size 10 "
        "--random-seed 11 --replicas 2 --device cpu --sim-step-us 1.5"
    )
    config = parse_flags(line.split())
    assert config == EngineConfig(
        model_path="sim",
        served_model_name="m",
        page_size=3,
        tp_size=4,
        dcp_size=2,
        dp_size=5,
        host="127.0.0.2",
        port=0,
        context_length=77,
        max_total_tokens=88,
        max_running_requests=9,
        chunked_prefill_size=10,
        random_seed=11,
        replicas=2,
        device="cpu",
        sim=SimTiming(step_us=1.5),
    )


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--page-size", "0"], "page_size must be at least 1, got 0"),
        (["--page-size", "x"], "argument --page-size: invalid int value: 'x'"),
        (["--page"], "unrecognized arguments: --page"),
        (["--tp-size", "2", "--dcp-size", "3"], "tp_size 2 is not a multiple of dcp_size 3"),
        (["--dcp-interleave", "3"], "page_size 16 is not a multiple of the DCP interleave 3"),
        (["--max-total-tokens", "9" * 30], f"max_total_tokens {'9' * 30} is more than 67108864 blocks of 16 tokens"),
        (["--kv-events-config", "\udcff"], "--kv-events-config: 'utf-8' codec can't encode"),
        (["--kv-events-config", '{"x":' + "[" * 50_000], "--kv-events-config: nested too deeply"),
        (
            ["--replicas", "2", "--dp-size", "999"],
            "replicas 2 of dp_size 999 are 1998 caches, a process has at most 1024",
        ),
        (["--context-length", "0"], "context_length must be at least 1, got 0"),
        (["--context-length", "many"], "argument --context-length: invalid int value: 'many'"),
        (["--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
        (["--max-total-tokens", "15"], "max_total_tokens 15 is less than one block of 16 tokens"),
        (["--max-queued-requests", "-1"], "max_queued_requests must not be negative, got -1"),
        (["--sim-step-us", "-1"], "--sim flags: step_us must not be negative, got -1.0"),
        (["--port", "65536"], "port must be in [0, 65535], got 65536"),
        (["--port", "65535", "--replicas", "2"], "HTTP ports 65535-65536 would run past 65535"),
        (["--host", ""], "--host '' is no address"),
        (["--host", "a..b"], "--host 'a..b' is no address"),
        (["--kv-events-config", "{"], "--kv-events-config: "),
        (["--kv-events-config", "[]"], "--kv-events-config: Expected `object`, got `array`"),
        (["--kv-events-config", '{"hwm":"many"}'], "--kv-events-config: Expected `int`, got `str`"),
        (events(hwm=2**31), "--kv-events-config: hwm must be at most 2147483647, got 2147483648"),
        (events(endpoint="udp://*:5557"), "'udp://*:5557' is not tcp://HOST:PORT"),
        (events(endpoint="tcp://*:30000"), "HTTP port 30000 and event port 30000 overlap"),
        ([*events(endpoint="tcp://*:65535"), "--dp-size", "2"], "event ports 65535-65536 would run past 65535"),
        ([*events(endpoint="tcp://*:0"), "--dp-size", "2"], "event port 0 ('tcp://*:0') needs dp_size 1, got 2"),
        (
            [*events(endpoint="tcp://*:5557", replay_endpoint="tcp://127.0.0.1:5559"), "--replicas", "3"],
            "event ports 5557-5559 and replay ports 5559-5561 overlap",
        ),
    ],
)
def test_what_cannot_work_ends_with_one_line_and_status_2(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_flags(flags)
    output = capsys.readouterr()
    assert ended.value.code == 2
    assert output.out == ""
    assert output.err.startswith("kvsteer-engine: error: ")
    assert output.err.count("\n") == 1
    assert said in output.err


def test_a_model_lends_its_context_to_a_config_that_has_none() -> None:
    tiny, sim = find_model("tiny"), find_model("sim")
    assert parse_flags([]).fitted_to(tiny).longest_sequence == 16_384
    assert parse_flags(["--context-length", "99"]).fitted_to(tiny).longest_sequence == 99
    assert parse_flags(["--context-length", "99999"]).fitted_to(sim).longest_sequence == 99_999


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tp-size", "8"], "tiny: 4 attention heads do not divide over 8 groups of ranks (tp_size 8 / dcp_size 1)"),
        (["--context-length", "99999"], "context_length 99999 is more than tiny's 16384"),
    ],
)
def test_what_cannot_work_with_a_model_is_refused_in_one_line(flags: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        parse_flags(flags).fitted_to(find_model("tiny"))


def test_events_without_an_endpoint_listen_where_the_engine_does() -> None:
    config = parse_flags(["--host", "127.0.0.9", *events()]).kv_events_config
    assert config == KVEventsConfig(publisher="zmq", endpoint="tcp://127.0.0.9:5557", bind=True)
    ipv6 = parse_flags(["--host", "::1", *events(topic="t")]).kv_events_config
    assert ipv6 == KVEventsConfig(publisher="zmq", endpoint="tcp://[::1]:5557", bind=True, topic="t")


def test_an_endpoint_that_is_given_is_used_as_written() -> None:
    config = parse_flags([*events(endpoint="tcp://*:7000")]).events_config(0)
    assert config == KVEventsConfig(publisher="zmq", endpoint="tcp://*:7000")


def test_a_host_name_becomes_the_address_that_every_socket_can_use() -> None:
    expected = {entry[4][0] for entry in socket.getaddrinfo("localhost", None)}
    assert parse_flags(["--host", "localhost"]).host in expected


def test_a_null_publisher_means_no_events() -> None:
    assert parse_flags(["--kv-events-config", "{}"]).events_config(0) is None


def test_sockets_on_different_addresses_may_share_a_port() -> None:
    assert parse_flags(["--host", "127.0.0.2", *events(endpoint="tcp://127.0.0.3:30000", bind=True)]).port == 30000


def test_a_publisher_that_connects_takes_no_port() -> None:
    assert parse_flags([*events(endpoint="tcp://127.0.0.1:30000")]).port == 30000


@given(port=st.integers(1, 40), event_port=st.integers(1, 40), replicas=st.integers(1, 5), dp_size=st.integers(1, 5))
def test_ports_are_accepted_exactly_where_no_two_sockets_share_one(
    port: int, event_port: int, replicas: int, dp_size: int
) -> None:
    config = KVEventsConfig(publisher="zmq", endpoint=f"tcp://*:{event_port}")
    http = [port + index for index in range(replicas)]
    lanes = list(range(event_port, event_port + replicas * dp_size))
    shared = set(http) & set(lanes)

    def build() -> EngineConfig:
        return EngineConfig(port=port, replicas=replicas, dp_size=dp_size, kv_events_config=config)

    if shared:
        with pytest.raises(ConfigError, match="overlap"):
            build()
        return
    built = build()
    assert [built.http_port(index) for index in range(replicas)] == http
    endpoints = [
        for_rank(built.events_config(index).endpoint, rank)  # type: ignore[union-attr]
        for index in range(replicas)
        for rank in range(dp_size)
    ]
    assert [parse_tcp(endpoint).port for endpoint in endpoints] == lanes
