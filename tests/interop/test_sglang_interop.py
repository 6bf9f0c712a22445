"""Released SGLang trees publish into the router: after every step the index is what the tree holds."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from driven_engine import DrivenEngine, conformance
from follower import Follower, following
from patience import until

from contract.descriptor import parse_descriptor
from engine.cache.page_hash import block_name, chain_digests, chain_seed
from router.conformance.rules import Rule, Verdict
from router.fleet.identity import Stream, from_server_info
from router.intake.stream_report import StreamState
from router.prompt import Prompt

STEPS = 150
PAGE_SIZE = 4
Namespace = tuple[str | None, str | None]
PLAIN: Namespace = (None, None)
TENANTS: list[Namespace] = [PLAIN, ("tenant", None), (None, "salt"), ("tenant", "salt")]
ADAPTER_KEY = "0123456789abcdef0123456789abcdef"
ADAPTERS: list[Namespace] = [PLAIN, (ADAPTER_KEY, None)]

pytestmark = pytest.mark.timeout(300)


class Tree:
    """What a step's answer says that the tree holds: each tenant's blocks, by namespace as the wire tells it."""

    def __init__(self, sglang: DrivenEngine, truth: dict[str, Any], *, namespaces: list[Namespace], width: int) -> None:
        self._prompts = sglang.prompts
        self._pairs = sglang.asked["pairs"]
        self._step = 2 * width if self._pairs else width
        self._width = width
        self._held: dict[tuple[str | None, str | None], dict[str | None, set[bytes]]] = {}
        for prompt, namespace, units in truth["cached"]:
            extra_key, salt = namespaces[namespace]
            visible = ("adapter" if extra_key == ADAPTER_KEY else None, salt)
            tenant = self._held.setdefault(visible, {}).setdefault(extra_key, set())
            tenant.update(self._digests(prompt, salt)[: units // width])
        blocks = sum(len(held) for tenants in self._held.values() for held in tenants.values())
        assert blocks * width == truth["tokens"], "the prompts are not all of the tree"

    def _digests(self, prompt: int, salt: str | None) -> list[bytes]:
        tokens = self._prompts[prompt]
        units = [token for pair in itertools.pairwise(tokens) for token in pair] if self._pairs else tokens
        whole = len(units) // self._step * self._step
        return chain_digests(units[:whole], width=self._step, prior=chain_seed(salt))

    def blocks(self) -> Counter[int]:
        """Every block by SGLang's own name, as often as tenants hold it."""
        return Counter(
            block_name(digest) for tenants in self._held.values() for held in tenants.values() for digest in held
        )

    def matches(self) -> Iterator[tuple[int, str | None, str | None, int]]:
        """Prompt, adapter, salt, and the tokens that any tenant holds of it."""
        for (adapter, salt), tenants in self._held.items():
            held = set().union(*tenants.values())
            for prompt in range(len(self._prompts)):
                known = itertools.takewhile(held.__contains__, self._digests(prompt, salt))
                yield prompt, adapter, salt, self._width * sum(1 for _ in known)


def held(lane: Follower) -> Counter[int]:
    """The index's rows: every block by name, with its copies."""
    rows = lane.index.blocks(lane.handle)
    assert {row.tier for row in rows} <= {"GPU"}
    return Counter({row.hash: row.copies for row in rows})  # type: ignore[misc]


def agrees(lane: Follower, seq: int, blocks: Counter[int]) -> bool:
    """Whether a lane holds what it should. A batch that is known is applied in pieces, where much comes at once."""
    return lane.status.last_seq == seq and held(lane) == blocks


def as_many(lane: Follower, truth: dict[str, Any]) -> bool:
    """Whether a lane holds as many tokens as the tree, whose names of blocks nobody can tell from outside."""
    return lane.status.last_seq == truth["seq"] and held(lane).total() * PAGE_SIZE == truth["tokens"]


def found(lane: Follower, tokens: list[int], lora_name: str | None, salt: str | None) -> int:
    prompt = Prompt(tokens, lora_name=lora_name, cache_salt=salt)
    return lane.index.match(prompt, [lane.handle])[lane.handle].tokens


@pytest.mark.parametrize("dcp_size", [1, 4])
@pytest.mark.parametrize("tree", ["radix", "unified"])
@pytest.mark.parametrize(
    ("namespaces", "pairs"), [([PLAIN], False), (TENANTS, False), ([PLAIN], True)], ids=["plain", "tenants", "pairs"]
)
async def test_the_index_is_the_tree_after_every_step(
    sglang: DrivenEngine, tree: str, dcp_size: int, namespaces: list[Namespace], pairs: bool
) -> None:
    """Shared prefixes, repeats, splits, locks, evictions, resets, tenants, salts; found by what SGLang advertises."""
    hello = open_tree(sglang, tree=tree, dcp_size=dcp_size, namespaces=namespaces, pairs=pairs)
    width = PAGE_SIZE * dcp_size
    async with lane_of(hello, width) as lane:
        for _ in range(STEPS):
            truth = sglang.step()
            now = Tree(sglang, truth, namespaces=namespaces, width=width)
            await until(lambda: agrees(lane, truth["seq"], now.blocks()), f"the tree after {truth['done']}")  # noqa: B023
            for prompt, adapter, salt, tokens in now.matches():
                assert found(lane, sglang.prompts[prompt], adapter, salt) == tokens, truth["done"]
        assert_flawless(lane, width)
        async with lane_of(hello, width) as late:
            await until(lambda: agrees(late, truth["seq"], held(lane)), "a late router has it all by replay")


@pytest.mark.parametrize("tree", ["radix", "unified"])
async def test_a_named_adapter_is_a_namespace_of_its_own(sglang: DrivenEngine, tree: str) -> None:
    hello = open_tree(sglang, tree=tree, dcp_size=1, namespaces=ADAPTERS, adapters={ADAPTER_KEY: "adapter"})
    async with lane_of(hello, PAGE_SIZE) as lane:
        for _ in range(STEPS // 2):
            truth = sglang.step()
            await until(lambda: as_many(lane, truth), f"the tree after {truth['done']}")  # noqa: B023
            now = Tree(sglang, truth, namespaces=ADAPTERS, width=PAGE_SIZE)
            for prompt, adapter, salt, tokens in now.matches():
                assert found(lane, sglang.prompts[prompt], adapter, salt) == tokens, truth["done"]
        assert_flawless(lane, PAGE_SIZE)


@pytest.mark.parametrize("tree", ["radix", "unified"])
async def test_the_released_publisher_conforms(sglang: DrivenEngine, tree: str) -> None:
    hello = open_tree(sglang, tree=tree, dcp_size=4, namespaces=TENANTS)
    findings = await conformance(sglang, stream_of(hello), advertised_width=4 * PAGE_SIZE)
    assert not [finding for finding in findings if finding.verdict is Verdict.FAIL]
    not_seen = {finding.rule for finding in findings if finding.verdict is Verdict.NOT_SEEN}
    assert not_seen == {Rule.RESTART}


def open_tree(sglang: DrivenEngine, **asked: Any) -> dict[str, Any]:
    defaults = {"page_size": PAGE_SIZE, "pairs": False, "adapters": {}}
    return sglang.open(**(defaults | asked))


def lane_of(hello: dict[str, Any], width: int) -> Any:
    """A subscriber where SGLang's own descriptor says that the stream is, of the width that it says."""
    descriptor = parse_descriptor(hello["server_info"])
    assert descriptor is not None
    assert descriptor.block_size == width
    stream = stream_of(hello)
    return following(stream.address.endpoint, stream.address.replay_endpoint, topic=stream.topic)


def stream_of(hello: dict[str, Any]) -> Stream:
    identity = from_server_info({"served_model_name": "m", **hello["server_info"]}, models=(), host="127.0.0.1")
    (stream,) = identity.streams
    return stream


def assert_flawless(lane: Follower, width: int) -> None:
    """Nothing was lost, refused, orphaned or unknown on the way."""
    stats, status = lane.index.stats(lane.handle), lane.status
    assert (status.state, status.lost, status.malformed, status.rejected_batches) == (StreamState.LIVE, 0, 0, 0)
    assert (stats.orphans, stats.unkeyed, stats.unknown_removals, stats.rejected_events) == (0, 0, 0, 0)
    assert (stats.emitted_width, stats.unusable) == (width, {})
