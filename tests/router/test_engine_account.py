"""What engines say of their load, read as they write it."""

from __future__ import annotations

import json

import pytest

from router.choice.engine_account import AccountError, read_loads, read_vllm_metrics
from router.choice.load import EngineLoad


def test_sglang_s_loads_are_read_by_rank_and_what_is_not_said_stays_unknown() -> None:
    loads = [
        {"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 1, "num_waiting_uncached_tokens": 70, "x": []},
        {"dp_rank": 1, "num_running_reqs": 0, "num_waiting_reqs": 0, "token_usage": 0.25},
    ]
    assert read_loads(json.dumps({"version": "0.5.23", "loads": loads}).encode()) == {
        0: EngineLoad(running=3, waiting=1, waiting_tokens=70),
        1: EngineLoad(running=0, waiting=0, cache_used=0.25),
    }


def test_vllm_s_gauges_are_read_by_engine_among_all_its_other_metrics() -> None:
    text = (
        "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0",model_name="a{b}"} 4.0\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 0.0\n'
        'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5\n'
        'vllm:kv_cache_usage_perc{engine="1",model_name="m"} NaN\n'
        "process_open_fds 10.0\n"
    )
    assert read_vllm_metrics(text.encode()) == {
        0: EngineLoad(running=4, waiting=2, cache_used=0.5),
        1: EngineLoad(running=0, waiting=0),
    }


@pytest.mark.parametrize(
    "answer",
    [b"", b"[]", b'{"loads": 3}', b'{"loads": [{"num_running_reqs": "x"}]}', b"\xff", b'{"a": ' + b"[" * 5000],
)
def test_what_is_no_account_is_refused_in_one_line(answer: bytes) -> None:
    with pytest.raises(AccountError):
        read_loads(answer)
    with pytest.raises(AccountError):
        read_vllm_metrics(answer)
