"""Data-parallel ranks behind one port: pins, the least loaded rank, and what the engine says of itself."""

from __future__ import annotations

import re

import aiohttp
import pytest
from engine_client import Client
from engine_process import EVENTS, EngineProcess

COMPLETIONS = "/v1/completions"


async def rank_of(client: Client, body: dict[str, object], **headers: str) -> int:
    _, answer = await client.post("/generate", {"sampling_params": {"max_new_tokens": 1}, **body}, **headers)
    rank: int = answer["meta_info"]["dp_rank"]
    return rank


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_pinned_request_goes_to_that_rank(client: Client, rank: int) -> None:
    assert await rank_of(client, {"text": "a", "data_parallel_rank": rank}) == rank
    assert await rank_of(client, {"text": "a", "routed_dp_rank": rank}) == rank
    assert await rank_of(client, {"text": "a"}, X_Data_Parallel_Rank=str(rank)) == rank


async def test_the_header_wins_over_the_body(client: Client) -> None:
    assert await rank_of(client, {"text": "a", "routed_dp_rank": 0}, X_Data_Parallel_Rank="1") == 1


async def test_the_header_pins_openai_routes_too(client: Client) -> None:
    body = {"prompt": list(range(13)), "max_tokens": 1}
    cached = []
    for rank in ("0", "1", "0", "1"):
        _, answer = await client.post(COMPLETIONS, body, X_Data_Parallel_Rank=rank)
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 0, 12, 12]  # each rank has a cache of its own


async def test_requests_without_a_pin_take_turns(client: Client) -> None:
    ranks = [await rank_of(client, {"text": "turn"}) for _ in range(4)]
    assert ranks in ([0, 1, 0, 1], [1, 0, 1, 0])


async def test_a_batch_is_spread_over_the_ranks(client: Client) -> None:
    body = {"text": ["a", "b", "c", "d"], "sampling_params": {"max_new_tokens": 1}}
    _, answers = await client.post("/generate", body)
    assert sorted(answer["meta_info"]["dp_rank"] for answer in answers) == [0, 0, 1, 1]


async def test_server_info_names_the_flags_under_sglang_s_names(client: Client) -> None:
    for path in ("/server_info", "/get_server_info"):
        status, info = await client.get(path)
        assert status == 200
        expected = {
            "model_path": "sim",
            "served_model_name": "sim",
            "page_size": 3,
            "tp_size": 2,
            "dcp_size": 2,
            "dp_size": 2,
            "context_length": 16384,
            "max_total_num_tokens": 65532,  # whole blocks of 6
            "tokenizer_path": "byte",
            "tokenizer": "byte",
            "engine": "kvsteer",
            "disaggregation_mode": "null",
            "port": int(client.url.rsplit(":", 1)[1]),
            "kv_events": None,
        }
        assert info | expected == info
        assert info["version"].startswith("kvsteer ")
        assert info["kv_events_reason"].startswith("KV events are off")


async def test_server_info_advertises_the_block_width_and_the_bound_ports(publishing: Client) -> None:
    _, info = await publishing.get("/server_info")
    descriptor = info["kv_events"]
    assert descriptor.pop("endpoint_port_base") > 0
    assert descriptor.pop("replay_endpoint_port_base") > 0
    assert descriptor == {
        "publisher": "zmq",
        "endpoint_host": "127.0.0.1",
        "topic": "",
        "block_size": 6,
        "dp_size": 1,
    }
    assert info["kv_events_reason"] is None


async def test_an_endpoint_no_router_can_reach_is_explained(http: aiohttp.ClientSession, tmp_path: object) -> None:
    config = f'{{"publisher":"zmq","endpoint":"ipc://{tmp_path}/events"}}'
    with EngineProcess("--model-path", "sim", "--dp-size", "2", "--kv-events-config", config) as process:
        _, info = await Client(http, process.wait_ready().url).get("/server_info")
    assert info["kv_events"] is None
    assert "ipc://" in info["kv_events_reason"]


async def test_the_model_list_has_the_served_name(client: Client) -> None:
    _, answer = await client.get("/v1/models")
    (card,) = answer["data"]
    assert answer["object"] == "list"
    assert (card["id"], card["object"], card["max_model_len"]) == ("sim", "model", 16384)


async def test_health_routes_say_ok(client: Client) -> None:
    for path in ("/health", "/ready", "/health_generate"):
        assert await client.get(path) == (200, "OK")


async def test_loads_have_an_entry_for_each_rank(client: Client) -> None:
    status, answer = await client.get("/v1/loads?include=core,queues")
    assert status == 200
    assert [load["dp_rank"] for load in answer["loads"]] == [0, 1]
    load = answer["loads"][0]
    assert load["max_total_num_tokens"] == 65532
    assert load["num_running_reqs"] == load["num_waiting_reqs"] == 0
    _, one = await client.get("/v1/loads?dp_rank=1")
    assert [load["dp_rank"] for load in one["loads"]] == [1]


@pytest.mark.parametrize("path", ["/v1/loads?include=core,rubbish", "/v1/loads?dp_rank=2", "/kv_blocks?dp_rank=x"])
async def test_bad_queries_are_refused(client: Client, path: str) -> None:
    status, answer = await client.get(path)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"


async def test_metrics_count_what_happened(http: aiohttp.ClientSession) -> None:
    with EngineProcess("--model-path", "sim", "--sim-step-us", "0", "--kv-events-config", EVENTS) as process:
        client = Client(http, process.wait_ready().url)
        for _ in range(2):
            await client.post(COMPLETIONS, {"prompt": list(range(40)), "max_tokens": 3})
        await client.post("/made/up/by/a/client", {})
        _, text = await client.get("/metrics")
    values = dict(re.findall(r"^(kvsteer_engine_\S+) (\S+)$", text, re.MULTILINE))
    assert float(values['kvsteer_engine_prompt_tokens_total{dp_rank="0"}']) == 80
    assert float(values['kvsteer_engine_cached_tokens_total{dp_rank="0"}']) == 32
    assert float(values['kvsteer_engine_generated_tokens_total{dp_rank="0"}']) == 6
    assert float(values['kvsteer_engine_requests_total{finish_reason="length"}']) == 2
    assert float(values["kvsteer_engine_time_to_first_token_seconds_count"]) == 2
    assert float(values['kvsteer_engine_http_responses_total{route="/v1/completions",status="200"}']) == 2
    assert float(values['kvsteer_engine_http_responses_total{route="unknown",status="404"}']) == 1
    assert float(values['kvsteer_engine_kv_events_last_seq{dp_rank="0"}']) >= 1
    assert float(values['kvsteer_engine_kv_events_alive{dp_rank="0"}']) == 1
    assert "made/up" not in text
