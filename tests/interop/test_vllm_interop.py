"""Released vLLM's cache manager and scheduler publish into the router: after every step the index is what they hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from driven_engine import DrivenEngine, conformance
from follower import Follower, following
from patience import until

from router.conformance.rules import Rule, Verdict
from router.fleet.identity import Model, Stream, from_vllm
from router.intake.stream_report import StreamState
from router.prompt import Prompt

STEPS = 150
BLOCK_SIZE = 4
PLAIN = [[None, None]]
MIXED = [[None, None], ["adapter", None], [None, "salt"], ["adapter", "salt"]]
Rows = Counter[tuple[str, int]]

pytestmark = pytest.mark.timeout(300)


def held(lane: Follower) -> Rows:
    """The index's rows: hash as text and group, with the copies."""
    rows = lane.index.blocks(lane.handle)
    assert {row.tier for row in rows} <= {"GPU"}
    return Counter({(text(row.hash), row.group): row.copies for row in rows})  # type: ignore[misc]


def text(name: int | bytes) -> str:
    return str(name) if isinstance(name, int) else name.hex()


def truth_of(answer: dict[str, Any]) -> Rows:
    return Counter({(name, group): copies for name, group, copies in answer["blocks"]})


def agrees(lane: Follower, answer: dict[str, Any]) -> bool:
    """Whether a lane holds what vLLM does. A batch that is known is applied in pieces, where much comes at once."""
    return lane.status.last_seq == answer["seq"] and held(lane) == truth_of(answer)


def lane_of(hello: dict[str, Any]) -> Any:
    """A subscriber where vLLM itself says that its stream is."""
    stream = stream_of(hello)
    return following(stream.address.endpoint, stream.address.replay_endpoint, topic=stream.topic)


def stream_of(hello: dict[str, Any]) -> Stream:
    identity = from_vllm(hello["kv_event_sources"], models=(Model(id="m"),), version="0.33.0", host="127.0.0.1")
    (stream,) = identity.streams
    return stream


def found(lane: Follower, tokens: list[int], namespace: list[str | None]) -> int:
    prompt = Prompt(tokens, lora_name=namespace[0], cache_salt=namespace[1])
    return lane.index.match(prompt, [lane.handle])[lane.handle].tokens


def open_vllm(vllm: DrivenEngine, **asked: Any) -> dict[str, Any]:
    shape = {"kind": "full", "block_size": BLOCK_SIZE, "dcp_size": 1, "blocks": 40}
    return vllm.open(**(shape | {"scheduler": False, "hash": "sha256", "namespaces": PLAIN} | asked))


@pytest.mark.parametrize("dcp_size", [1, 4])
@pytest.mark.parametrize("namespaces", [PLAIN, MIXED], ids=["plain", "adapters and salts"])
@pytest.mark.parametrize(
    ("scheduler", "hash_name"),
    [(False, "sha256"), (False, "xxhash_cbor"), (True, "sha256")],
    ids=["manager", "manager xxhash", "scheduler"],
)
async def test_the_index_is_what_vllm_holds_after_every_step(
    vllm: DrivenEngine, dcp_size: int, namespaces: list[Any], scheduler: bool, hash_name: str
) -> None:
    """Chunked prefill, decoding, duplicates, preemption, eviction and resets; copies counted, hits in tokens."""
    hello = open_vllm(vllm, dcp_size=dcp_size, namespaces=namespaces, scheduler=scheduler, hash=hash_name)
    width, most = BLOCK_SIZE * dcp_size, 0
    async with lane_of(hello) as lane:
        for _ in range(STEPS):
            answer = vllm.step()
            await until(lambda: agrees(lane, answer), f"what vLLM holds after {answer['done']}")  # noqa: B023
            for prompt, namespace, hit in answer["cached"]:
                tokens = vllm.prompts[prompt]
                matched = found(lane, tokens, namespaces[namespace])
                # vLLM computes at least the last token again, so of a prompt that is all cached it takes a block less.
                assert min(matched, (len(tokens) - 1) // width * width) == hit, answer["done"]
            most = max(most, *held(lane).values(), 0)
        assert_flawless(lane)
        assert lane.index.width(lane.handle) == width
        assert most > 1, "no block was ever held twice"
        async with lane_of(hello) as late:
            await until(lambda: agrees(late, answer), "a late router has it all by replay")


@pytest.mark.parametrize("scheduler", [False, True], ids=["manager", "scheduler"])
@pytest.mark.parametrize(("kind", "dcp_size"), [("swa", 1), ("mamba", 1), ("mamba", 4)])
async def test_every_group_of_a_hybrid_model_is_followed_and_full_attention_decides(
    vllm: DrivenEngine, kind: str, dcp_size: int, scheduler: bool
) -> None:
    """Sparse stores, stores without hashes, partial blocks: all held; no prompt matches fewer blocks than are found."""
    hello = open_vllm(vllm, kind=kind, dcp_size=dcp_size, blocks=60, scheduler=scheduler)
    width, groups, hits = BLOCK_SIZE * dcp_size, set(), 0
    async with lane_of(hello) as lane:
        for _ in range(STEPS):
            answer = vllm.step()
            await until(lambda: agrees(lane, answer), f"what vLLM holds after {answer['done']}")  # noqa: B023
            for prompt, _, hit in answer["cached"]:
                # Beside a Mamba group a hit may end inside a block, which no event tells of.
                assert found(lane, vllm.prompts[prompt], PLAIN[0]) >= hit // width * width, answer["done"]
                hits += hit > 0
            groups |= {group for _, group in held(lane)}
        assert groups == {0, 1}
        assert hits > 0
        assert lane.index.width(lane.handle) == width
        status = lane.status
        assert (status.state, status.lost, status.rejected_batches) == (StreamState.LIVE, 0, 0)


@pytest.mark.parametrize("kind", ["full", "swa", "mamba"])
async def test_the_released_publisher_conforms(vllm: DrivenEngine, kind: str) -> None:
    hello = open_vllm(vllm, kind=kind, scheduler=True, namespaces=MIXED, blocks=60)
    findings = await conformance(vllm, stream_of(hello), advertised_width=BLOCK_SIZE)
    assert not [finding for finding in findings if finding.verdict is Verdict.FAIL]
    not_seen = {finding.rule for finding in findings if finding.verdict is Verdict.NOT_SEEN}
    assert not_seen == {Rule.RESTART}


def assert_flawless(lane: Follower) -> None:
    """Nothing was lost, refused, orphaned or unknown on the way."""
    stats, status = lane.index.stats(lane.handle), lane.status
    assert (status.state, status.lost, status.malformed, status.rejected_batches) == (StreamState.LIVE, 0, 0, 0)
    assert (stats.orphans, stats.unkeyed, stats.unknown_removals, stats.rejected_events) == (0, 0, 0, 0)
    assert stats.unusable == {}
