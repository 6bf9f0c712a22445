"""How busy an engine says it is: SGLang's ``/v1/loads`` (ours too) and vLLM's metrics, read into loads by rank. Pure.

Fields: SGLang 0.5.23; gauges ``num_requests_running``, ``num_requests_waiting``, ``kv_cache_usage_perc`` of vLLM 0.33.
What is missing or of another type counts as not said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from router.choice.load import EngineLoad

__all__ = ["AccountError", "read_loads", "read_vllm_metrics"]

MAX_RANKS = 1024
_GAUGE = re.compile(
    r"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc)(?:\{(.*)\})? (\S+)", re.MULTILINE
)
_RANK = re.compile(r'(?:^|,)\s*engine="(\d+)"')


class AccountError(ValueError):
    """An answer that says nothing of an engine's load, in one line."""


class _Lane(msgspec.Struct):
    dp_rank: int = 0
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_waiting_uncached_tokens: int | None = None
    token_usage: float | None = None


class _Loads(msgspec.Struct):
    loads: list[_Lane]


_LOADS = msgspec.json.Decoder(_Loads)


def read_loads(answer: bytes) -> dict[int, EngineLoad]:
    """Loads by rank of a ``/v1/loads`` answer.

    Raises:
        AccountError: it is none.
    """
    try:
        lanes = _LOADS.decode(answer).loads
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AccountError(f"/v1/loads: {error}") from None
    return {
        lane.dp_rank: EngineLoad(
            running=lane.num_running_reqs,
            waiting=lane.num_waiting_reqs,
            waiting_tokens=lane.num_waiting_uncached_tokens,
            cache_used=lane.token_usage,
        )
        for lane in lanes[:MAX_RANKS]
    }


def read_vllm_metrics(answer: bytes) -> dict[int, EngineLoad]:
    """Loads by rank of a ``/metrics`` answer.

    Raises:
        AccountError: the gauges are not there.
    """
    gauges: dict[int, dict[str, float]] = {}
    for rank, name, value in _gauges(answer.decode(errors="replace")):
        gauges.setdefault(rank, {})[name] = value
    found = {
        rank: EngineLoad(
            running=int(values["num_requests_running"]),
            waiting=int(values.get("num_requests_waiting", 0)),
            cache_used=values.get("kv_cache_usage_perc"),
        )
        for rank, values in gauges.items()
        if "num_requests_running" in values
    }
    if not found:
        raise AccountError("/metrics has no vllm:num_requests_running")
    return found


def _gauges(text: str) -> Iterator[tuple[int, str, float]]:
    for name, labels, number in _GAUGE.findall(text):
        rank = _RANK.search(labels)
        try:
            value = float(number)
        except ValueError:
            continue
        if 0 <= value < float("inf"):
            yield int(rank[1]) if rank else 0, name, value
