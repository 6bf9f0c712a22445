from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contract.descriptor import Descriptor, DescriptorError, LaneAddress, describe, parse_descriptor
from contract.kv_events_config import KVEventsConfig, KVEventsConfigError, parse_kv_events_config

KV_EVENTS = {
    "publisher": "zmq",
    "endpoint_host": "*",
    "endpoint_port_base": 5557,
    "topic": "",
    "block_size": 6,
    "dp_size": 2,
}


def config_of(raw: Any) -> KVEventsConfig | None:
    """SGLang reads a flag it cannot parse as no flag at all."""
    if raw is None:
        return None
    try:
        return parse_kv_events_config(raw if isinstance(raw, str) else json.dumps(raw))
    except KVEventsConfigError:
        return None


def test_the_descriptor_is_sglangs_in_all_recorded_cases(golden_dir: Path) -> None:
    cases = json.loads((golden_dir / "sglang-server_info-kv_events.json").read_text())
    assert len(cases) == 33
    for case in cases:
        descriptor = describe(
            config_of(case["kv_events_config"]),
            page_size=case["page_size"],
            dcp_size=case["dcp_size"],
            dp_size=case["dp_size"],
            attn_dp_size=case["attn_dp_size"],
            load_publish_endpoint=case["load_publish_endpoint"],
        )
        assert msgspec.to_builtins(descriptor) == case["descriptor"], case["case"]
        assert parse_descriptor({"kv_events": case["descriptor"]}) == descriptor, case["case"]


def test_the_advertised_width_is_logical() -> None:
    descriptor = describe(KVEventsConfig(publisher="zmq"), page_size=3, dcp_size=2, dp_size=1)
    assert descriptor is not None
    assert descriptor.block_size == 6


def test_lanes_count_up_from_the_base_and_take_the_replicas_host_for_a_wildcard() -> None:
    descriptor = msgspec.convert({**KV_EVENTS, "replay_endpoint_port_base": 6557}, Descriptor)
    assert descriptor.lanes("10.0.0.5") == [
        LaneAddress(0, "tcp://10.0.0.5:5557", "tcp://10.0.0.5:6557"),
        LaneAddress(1, "tcp://10.0.0.5:5558", "tcp://10.0.0.5:6558"),
    ]
    assert descriptor.lanes("::1")[0].endpoint == "tcp://[::1]:5557"


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "::", "[::]"])
def test_every_wildcard_means_the_replicas_own_host(host: str) -> None:
    descriptor = msgspec.convert({**KV_EVENTS, "endpoint_host": host}, Descriptor)
    assert descriptor.lanes("replica")[0].endpoint == "tcp://replica:5557"


@pytest.mark.parametrize("host", ["10.1.2.3", "[::1]", "kv.example"])
def test_a_concrete_host_is_taken_as_it_stands(host: str) -> None:
    descriptor = msgspec.convert({**KV_EVENTS, "endpoint_host": host}, Descriptor)
    assert descriptor.lanes("replica")[0] == LaneAddress(0, f"tcp://{host}:5557", None)


def test_ranks_past_the_last_port_have_no_lane() -> None:
    ports = {"endpoint_port_base": 65534, "replay_endpoint_port_base": 65535, "dp_size": 4}
    lanes = msgspec.convert({**KV_EVENTS, **ports}, Descriptor).lanes("h")
    assert lanes == [LaneAddress(0, "tcp://h:65534", "tcp://h:65535"), LaneAddress(1, "tcp://h:65535", None)]


@pytest.mark.parametrize("info", [{}, {"kv_events": None}, {"page_size": 16}])
def test_an_engine_that_publishes_nothing_has_no_descriptor(info: dict[str, Any]) -> None:
    assert parse_descriptor(info) is None


@pytest.mark.parametrize(
    ("kv_events", "named"),
    [
        ({**KV_EVENTS, "block_size": 0}, "block_size"),
        ({**KV_EVENTS, "block_size": "16"}, "block_size"),
        ({**KV_EVENTS, "endpoint_port_base": 65536}, "endpoint_port_base"),
        ({**KV_EVENTS, "dp_size": None}, "dp_size"),
        ({"publisher": "zmq"}, "endpoint_host"),
        ([], "kv_events"),
    ],
)
def test_a_broken_descriptor_is_refused_by_field(kv_events: Any, named: str) -> None:
    with pytest.raises(DescriptorError, match=named):
        parse_descriptor({"kv_events": kv_events})


def test_an_unknown_key_costs_nothing() -> None:
    assert parse_descriptor({"kv_events": {**KV_EVENTS, "shards": 3}}) == msgspec.convert(KV_EVENTS, Descriptor)


@pytest.mark.parametrize(
    ("text", "named"),
    [("{nope", "--kv-events-config"), ('{"hwm": 0}', "hwm must be at least 1, got 0"), ('{"topic": 3}', "topic")],
)
def test_a_flag_that_cannot_be_read_is_one_clear_line(text: str, named: str) -> None:
    with pytest.raises(KVEventsConfigError, match=named) as caught:
        parse_kv_events_config(text)
    assert "\n" not in str(caught.value)
