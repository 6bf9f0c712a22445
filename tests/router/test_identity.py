"""What a replica is, read from what SGLang, vLLM and our engine serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contract.descriptor import LaneAddress
from router.fleet.identity import Engine, IdentityError, Model, Stream, from_server_info, from_vllm, parse_models
from router.fleet.vllm_metrics import advertised_widths

HOST = "10.9.8.7"
MODELS = (Model(id="m"),)


def server_info(**more: Any) -> dict[str, Any]:
    return {"served_model_name": "m", "model_path": "/models/m", "tokenizer_path": "/models/m", "dp_size": 1, **more}


def kv_events(**more: Any) -> dict[str, Any]:
    described = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv"}
    return {**described, "block_size": 6, "dp_size": 1, **more}


def test_every_descriptor_a_real_sglang_gave_becomes_its_lanes(golden_dir: Path) -> None:
    cases = json.loads((golden_dir / "sglang-server_info-kv_events.json").read_text())
    assert len(cases) == 33
    for case in cases:
        descriptor = case["descriptor"]
        identity = from_server_info(server_info(kv_events=descriptor), models=MODELS, host=HOST)
        assert identity.engine == Engine.SGLANG
        if descriptor is None:
            assert identity.streams == ()
            assert identity.block_size is None
            assert identity.no_events
        else:
            assert identity.block_size == descriptor["block_size"]
            assert identity.dp_size == descriptor["dp_size"]
            assert {stream.topic for stream in identity.streams} == {descriptor["topic"]}, case["case"]


def test_our_engine_is_told_by_its_own_word() -> None:
    info = server_info(engine="kvsteer", tokenizer_path="byte", vocab_size=272, version="kvsteer 0.1.0")
    identity = from_server_info(info | {"kv_events": kv_events()}, models=(), host=HOST)
    assert (identity.engine, identity.tokenizer, identity.vocab_size) == (Engine.KVSTEER, "byte", 272)
    assert identity.models == (Model(id="m"),)
    assert identity.stream(0) == Stream(LaneAddress(0, f"tcp://{HOST}:5557", None), "kv")
    assert identity.stream(1) is None


def test_each_rank_has_its_own_ports() -> None:
    described = kv_events(dp_size=3, replay_endpoint_port_base=6557)
    identity = from_server_info(server_info(kv_events=described), models=MODELS, host="::1")
    assert [stream.address.endpoint for stream in identity.streams] == [f"tcp://[::1]:{5557 + n}" for n in range(3)]
    assert identity.streams[2].address.replay_endpoint == "tcp://[::1]:6559"


def test_events_that_are_off_still_leave_lanes_and_a_reason() -> None:
    identity = from_server_info(server_info(dp_size=2, kv_events=None), models=MODELS, host=HOST)
    assert identity.dp_size == 2
    assert identity.streams == ()
    assert "null" in (identity.no_events or "")
    said = server_info(kv_events=None, kv_events_reason="nobody asked for events")
    assert from_server_info(said, models=MODELS, host=HOST).no_events == "nobody asked for events"


@pytest.mark.parametrize("broken", [{"block_size": 0}, {"endpoint_port_base": 70_000}, {"dp_size": 5000}, {"topic": 3}])
def test_a_descriptor_that_cannot_be_used_costs_the_events_only(broken: dict[str, Any]) -> None:
    identity = from_server_info(server_info(kv_events=kv_events(**broken)), models=MODELS, host=HOST)
    assert identity.streams == ()
    assert "kv_events" in (identity.no_events or "")


def test_fields_of_unexpected_types_count_as_absent() -> None:
    info = server_info(dp_size="two", tokenizer_path=7, version=None, vocab_size=True)
    identity = from_server_info(info, models=MODELS, host=HOST)
    assert (identity.dp_size, identity.tokenizer, identity.version, identity.vocab_size) == (1, None, None, None)


@pytest.mark.parametrize("answer", [None, [], "x", {}, {"served_model_name": 3}])
def test_an_answer_that_names_no_engine_is_refused(answer: object) -> None:
    with pytest.raises(IdentityError):
        from_server_info(answer, models=(), host=HOST)


def test_vllm_names_its_streams_and_a_wildcard_is_the_host_it_was_reached_at(golden_dir: Path) -> None:
    shapes = json.loads((golden_dir / "vllm-http-shapes.json").read_text())
    identity = from_vllm(shapes["/kv_event_sources"], models=MODELS, version="0.33.0", host=HOST)
    assert identity.engine == Engine.VLLM
    assert identity.dp_size == 2
    assert identity.block_size is None
    first, second = identity.streams
    assert first == Stream(LaneAddress(0, "tcp://10.0.0.5:41001", "tcp://10.0.0.5:41002"), "kv-events")
    assert second == Stream(LaneAddress(1, f"tcp://{HOST}:5558", None), "")


@pytest.mark.parametrize("sources", [None, {}, {"0": {"publisher": "null"}}, {"0": 3}, {"x": {"publisher": "zmq"}}])
def test_vllm_without_streams_has_one_lane_and_a_reason(sources: object) -> None:
    identity = from_vllm(sources, models=MODELS, version=None, host=HOST)
    assert (identity.dp_size, identity.streams) == (1, ())
    assert identity.no_events


def series(*engines: dict[str, str]) -> str:
    lines = [",".join(f'{name}="{value}"' for name, value in labels.items()) for labels in engines]
    return "\n".join(["# TYPE x gauge", *(f"vllm:cache_config_info{{{line}}} 1.0" for line in lines), "other 3", ""])


@pytest.mark.parametrize("name", ["9" * 5000, "99999999999", "-1", "\u0663", "", "x", "1024"])
def test_a_key_that_is_no_rank_is_no_stream_and_no_lane(name: str) -> None:
    source = {"publisher": "zmq", "endpoint": "tcp://*:5557"}
    identity = from_vllm({name: source, "3": source}, models=MODELS, version=None, host=HOST)
    assert identity.dp_size == 4
    assert [stream.address.dp_rank for stream in identity.streams] == [3]


def test_vllm_names_its_width_in_its_metrics(golden_dir: Path) -> None:
    recorded = json.loads((golden_dir / "vllm-http-shapes.json").read_text())["cache_config_info_labels"]
    assert advertised_widths(series(recorded)) == {0: 16}
    assert advertised_widths(series(recorded | {"effective_attention_block_size": "64"})) == {0: 64}
    assert advertised_widths(series({"engine": "1", "block_size": 'a"b'.replace('"', '\\"')})) == {1: None}
    assert advertised_widths("") == {}


@pytest.mark.parametrize(
    ("sizes", "agreed", "reason"),
    [
        (["4224", "4224"], 4224, None),
        (["4224", "1056"], None, "engines disagree (rank 0: 4224, rank 1: 1056)"),
        (["4224", "None"], None, "no value from rank 1"),
        (["None", "None"], 16, None),
    ],
)
def test_vllm_engines_behind_one_address_must_agree_on_a_width(
    sizes: list[str], agreed: int | None, reason: str | None
) -> None:
    text = series(
        *(
            {"engine": str(rank), "block_size": "16", "effective_attention_block_size": size}
            for rank, size in enumerate(sizes)
        )
    )
    identity = from_vllm({}, models=MODELS, version=None, host=HOST, widths=advertised_widths(text))
    assert (identity.block_size, identity.disagreement) == (agreed, reason)


def test_models_and_adapters_are_told_apart() -> None:
    listed = {"data": [{"id": "base", "root": "/models/base"}, {"id": "lora", "parent": "base"}, {"id": 3}, "x"]}
    models = parse_models(listed)
    assert [(model.id, model.parent) for model in models] == [("base", None), ("lora", "base")]
    vllm = from_vllm({}, models=models, version=None, host=HOST)
    assert vllm.tokenizer == "/models/base"
    assert vllm.model("lora") == models[1]
    assert vllm.model("base:lora") is None
    sglang = from_server_info(server_info(), models=models, host=HOST)
    adapter = sglang.model("base:other")
    assert adapter is not None
    assert (adapter.id, adapter.parent) == ("other", "base")
    assert sglang.model("nobody:other") is None
    for answer in ({}, [], {"data": 3}, None):
        with pytest.raises(IdentityError):
            parse_models(answer)
