"""The tree's events, encoded, are the bytes that SGLang 0.5.23 published for the same operations."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from contract.events import Dialect, encode_batch
from engine.cache.radix_tree import RadixTree
from engine.request import Namespace

GOLDEN = Path(__file__).parents[1] / "golden"
ONE_OPERATION_A_BATCH = [
    "sglang-page1",
    "sglang-page16",
    "sglang-page64",
    "sglang-page4-namespaces",
    "sglang-page4-wide-tokens",
]
BATCHED = "sglang-page16-batched"


def recorded(name: str) -> list[bytes]:
    lines = (GOLDEN / f"{name}.jsonl").read_text().splitlines()
    return [base64.b64decode(json.loads(line)["payload_b64"]) for line in lines]


def meta(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.meta.json").read_text())


def encoded_batches(tree: RadixTree, *, dp_rank: int = 0) -> Iterator[bytes | None]:
    """What the tree publishes each time this is asked; None where nothing happened."""
    seqs = count()
    while True:
        events = tree.take_events()
        if events:
            yield encode_batch(events, ts=1750000000.0 + 0.25 * next(seqs), dp_rank=dp_rank, dialect=Dialect.SGLANG)
        else:
            yield None


class Replayer:
    """Applies recorded operations and checks what each one answered."""

    def __init__(self, *, width: int) -> None:
        self.tree = RadixTree(width=width)
        self._ids = count()

    def apply(self, operation: dict[str, Any]) -> None:
        argument = operation["arg"]
        match operation["op"]:
            case "insert":
                tokens, namespace = key_of(argument)
                matched = self.tree.insert(tokens, self.fresh_blocks(tokens), namespace)
                assert matched == operation.get("matched_prefix", matched)
            case "match":
                matched = self.tree.match(*key_of(argument)).tokens
                assert matched == operation.get("matched", matched)
            case "evict":
                evicted = sum(len(leaf.tokens) for leaf in self.tree.evict(argument))
                assert evicted == operation.get("evicted_tokens", evicted)
            case "reset":
                self.tree.reset()
            case other:
                assert other == "construct"
        self.tree.check_invariants()

    def fresh_blocks(self, tokens: list[int]) -> list[int]:
        return [next(self._ids) for _ in range(len(tokens) // self.tree.width)]


def key_of(argument: list[int] | dict[str, Any]) -> tuple[list[int], Namespace]:
    if isinstance(argument, list):
        return argument, Namespace()
    return argument["tokens"], Namespace(argument.get("extra_key"), argument.get("cache_salt"))


@pytest.mark.parametrize("name", ONE_OPERATION_A_BATCH)
def test_each_operation_publishes_the_recorded_bytes(name: str) -> None:
    replayer = Replayer(width=meta(name)["block_size"])
    published = encoded_batches(replayer.tree)
    expected = recorded(name)
    batches = []
    for operation in meta(name)["ops"]:
        replayer.apply(operation)
        batch = next(published)
        assert (batch is None) == (operation["seq"] is None)
        if batch is not None:
            batches.append(batch)
            assert batch == expected[operation["seq"]], operation
    assert batches == expected


def test_operations_of_one_batch_are_coalesced_to_the_recorded_bytes() -> None:
    replayer = Replayer(width=meta(BATCHED)["page_size"])
    published = encoded_batches(replayer.tree)
    for batch, expected in zip(meta(BATCHED)["ops"], recorded(BATCHED), strict=True):
        for operation, argument in batch["ops"]:
            replayer.apply({"op": operation, "arg": argument})
        assert next(published) == expected, batch["label"]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_each_data_parallel_rank_publishes_the_recorded_bytes(rank: int) -> None:
    dp3 = meta("sglang-page16-dp3")
    rows = [json.loads(line) for line in (GOLDEN / "sglang-page16-dp3.jsonl").read_text().splitlines()]
    expected = [base64.b64decode(row["payload_b64"]) for row in rows if row["port"] == dp3["endpoint_port_base"] + rank]
    replayer = Replayer(width=dp3["page_size"])
    published = encoded_batches(replayer.tree, dp_rank=rank)
    constructed = next(published)
    replayer.apply({"op": "insert", "arg": dp3["tokens_by_rank"][str(rank)]})
    assert [constructed, next(published)] == expected


@pytest.mark.parametrize("name", ["sglang-page1", "sglang-page16", "sglang-page64"])
def test_a_snapshot_describes_the_recorded_final_index(name: str) -> None:
    recording = meta(name)
    replayer = Replayer(width=recording["block_size"])
    for operation in recording["ops"]:
        replayer.apply(operation)
    held = [block for event in replayer.tree.held_events() for block in event.block_hashes]
    assert sorted(held) == sorted(block % 2**64 for block in recording["expected_index"]["GPU"])
    for probe in recording["probes"].values():
        assert replayer.tree.match(probe["tokens"]).tokens == probe["expected_matched_tokens"]
