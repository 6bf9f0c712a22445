"""The index: engines' truth by hash, tier and group; prompts matched by content; nothing left behind."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contract.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event, EventBatch, Rejected
from contract.hashing import block_keys
from router.intake.index import BlockIndex, BlockRow, LaneHandle, LaneLimits
from router.prompt import Prompt

PAGE_SIZE, DCP_SIZE = 3, 2
WIDTH = 6
A = [10, 11, 12, 13, 14, 15]
B = [20, 21, 22, 23, 24, 25]
C = [30, 31, 32, 33, 34, 35]


def batch(*events: Event | Rejected) -> EventBatch:
    return EventBatch(ts=0.0, events=events)


def stored(
    names: Sequence[BlockHash], tokens: Sequence[int], *, parent: BlockHash | None = None, **fields: Any
) -> BlockStored:
    fields = {"block_size": WIDTH, "medium": "GPU"} | fields
    return BlockStored(block_hashes=names, parent_block_hash=parent, token_ids=tokens, **fields)


def removed(*names: BlockHash, medium: str | None = "GPU", group: int | None = None) -> BlockRemoved:
    return BlockRemoved(block_hashes=names, medium=medium, group_idx=group)


class Lane:
    """An index of one lane."""

    def __init__(self, *, advertised: int | None = None, limits: LaneLimits | None = None) -> None:
        self.index = BlockIndex(limits=limits)
        self.handle = self.index.add_lane(advertised_width=advertised)

    def apply(self, *events: Event | Rejected) -> None:
        self.index.apply(self.handle, batch(*events))
        self.index.check_invariants()

    def tokens(self, prompt: Sequence[int], **namespace: str | None) -> int:
        found = self.index.match(Prompt(prompt, **namespace), [self.handle])
        return found[self.handle].tokens

    def tiers(self, prompt: Sequence[int]) -> dict[str, int]:
        return self.index.match(Prompt(prompt), [self.handle])[self.handle].tiers

    def copies(self) -> dict[tuple[BlockHash, str, int | None], int]:
        return {(row.hash, row.tier, row.group): row.copies for row in self.index.blocks(self.handle)}

    @property
    def stats(self) -> Any:
        return self.index.stats(self.handle)


@pytest.fixture
def lane() -> Lane:
    return Lane()


# Chains


def test_a_stored_chain_matches_from_the_first_token_on(lane: Lane) -> None:
    lane.apply(stored([1, 2], A + B))
    assert lane.tokens(A + B + C) == 2 * WIDTH
    assert lane.tokens(A + C) == WIDTH
    assert lane.tokens(B) == 0
    assert lane.tokens(A[:-1]) == 0


def test_a_child_continues_its_parents_chain(lane: Lane) -> None:
    lane.apply(stored([1], A), stored([2], B, parent=1))
    assert lane.tokens(A + B) == 2 * WIDTH


def test_removing_a_parent_before_its_child_leaves_neither_and_no_error(lane: Lane) -> None:
    lane.apply(stored([1, 2], A + B), removed(1, 2))
    assert (lane.tokens(A + B), lane.copies(), lane.stats.unknown_removals) == (0, {}, 0)


def test_a_hole_in_a_chain_ends_the_match_until_it_is_filled(lane: Lane) -> None:
    lane.apply(stored([1, 2, 3], A + B + C), removed(2))
    assert lane.tokens(A + B + C) == WIDTH
    lane.apply(stored([2], B, parent=1))
    assert lane.tokens(A + B + C) == 3 * WIDTH


def test_a_child_of_a_parent_just_removed_is_known_by_its_place(lane: Lane) -> None:
    lane.apply(stored([1], A), removed(1), stored([2], B, parent=1))
    assert lane.tokens(A + B) == 0
    lane.apply(stored([1], A))
    assert lane.tokens(A + B) == 2 * WIDTH


def test_removal_of_what_is_not_held_is_counted(lane: Lane) -> None:
    lane.apply(removed(7), stored([1], A))
    assert (lane.tokens(A), lane.stats.unknown_removals) == (WIDTH, 1)


# Orphans


def test_orphans_are_held_but_match_nothing_until_their_parent_is_stored(lane: Lane) -> None:
    lane.apply(stored([2], B, parent=1), stored([3], C, parent=2))
    assert (lane.tokens(A + B + C), lane.tokens(B), lane.stats.orphans) == (0, 0, 2)
    assert lane.copies() == {(2, "GPU", None): 1, (3, "GPU", None): 1}
    lane.apply(stored([1], A))
    assert (lane.tokens(A + B + C), lane.stats.orphans) == (3 * WIDTH, 0)


def test_orphans_removed_before_their_parent_comes_stay_away(lane: Lane) -> None:
    lane.apply(stored([2, 3], B + C, parent=1), removed(2), stored([1], A))
    assert lane.tokens(A + B + C) == WIDTH
    assert lane.copies() == {(1, "GPU", None): 1, (3, "GPU", None): 1}
    lane.apply(stored([2], B, parent=1))
    assert lane.tokens(A + B + C) == 3 * WIDTH


def test_a_store_behind_a_known_block_of_an_unknown_parent_is_placed(lane: Lane) -> None:
    """The parent was forgotten, but the first of the blocks is held under its key."""
    lane.apply(stored([1, 2], A + B))
    lane.apply(stored([2, 3], B + C, parent=77))
    assert lane.tokens(A + B + C) == 3 * WIDTH


def test_orphans_are_bounded_and_the_oldest_gives_way() -> None:
    lane = Lane(limits=LaneLimits(orphans=2))
    lane.apply(*(stored([name], B, parent=name + 100) for name in (1, 2, 3)))
    assert (lane.stats.orphans, lane.stats.orphans_dropped, len(lane.copies())) == (2, 1, 3)
    lane.apply(stored([101], A), stored([103], C))
    assert (lane.tokens(A + B), lane.tokens(C + B)) == (WIDTH, 2 * WIDTH)


# Copies


def test_a_block_stored_twice_stays_until_its_second_removal(lane: Lane) -> None:
    lane.apply(stored([1, 2], A + B), stored([2], B, parent=1), removed(2))
    assert lane.tokens(A + B) == 2 * WIDTH
    lane.apply(removed(2))
    assert lane.tokens(A + B) == WIDTH


@pytest.mark.parametrize(("medium", "copies"), [("CPU_PINNED", 1), ("DISK", 1), ("EXTERNAL", 1), ("CPU", 2)])
def test_sglang_repeats_itself_outside_the_gpu_and_vllm_does_not(lane: Lane, medium: str, copies: int) -> None:
    lane.apply(stored([1], A, medium=medium), stored([1], A, medium=medium))
    assert set(lane.copies().values()) == {copies}


def test_a_full_report_of_a_session_adds_no_copies_but_a_second_tenant_does(lane: Lane) -> None:
    report: dict[str, Any] = {"session_id": "s", "group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    lane.apply(stored([1], A, **report), stored([1], A, **report))
    assert set(lane.copies().values()) == {1}
    lane.apply(stored([2], B, session_id="s"), stored([2], B, session_id="s"))
    assert lane.copies()[2, "GPU", None] == 2


def test_two_hashes_of_one_content_are_two_blocks_under_one_key(lane: Lane) -> None:
    """SGLang's dynamo format names the same tokens differently for each tenant, and says no more about them."""
    lane.apply(stored([1], A), stored([2], A), removed(1))
    assert lane.tokens(A) == WIDTH
    lane.apply(removed(2))
    assert lane.tokens(A) == 0


# Tiers


def test_a_block_gone_from_the_gpu_still_hits_in_the_host_tier(lane: Lane) -> None:
    lane.apply(stored([1, 2], A + B), stored([1, 2], A + B, medium="CPU_PINNED"), removed(2))
    assert lane.tiers(A + B) == {"GPU": WIDTH, "CPU": WIDTH}
    lane.apply(removed(2, medium="CPU_PINNED"))
    assert lane.tiers(A + B) == {"GPU": WIDTH}


def test_a_medium_nobody_knows_is_a_tier_of_its_own(lane: Lane) -> None:
    lane.apply(stored([1], A, medium="mooncake"), stored([2], B, medium="disk", parent=1))
    assert lane.tiers(A + B) == {"mooncake": WIDTH, "DISK": WIDTH}


def test_a_removal_without_a_medium_hits_every_tier(lane: Lane) -> None:
    lane.apply(stored([1], A), stored([1], A, medium="CPU"), stored([2], B), removed(1, medium=None))
    assert lane.copies() == {(2, "GPU", None): 1}
    assert lane.stats.unknown_removals == 0


def test_a_store_without_a_medium_is_on_the_gpu(lane: Lane) -> None:
    lane.apply(stored([1], A, medium=None))
    assert lane.tiers(A) == {"GPU": WIDTH}


@pytest.mark.parametrize("placeholder_first", [True, False])
def test_a_placeholder_takes_the_key_of_its_hash_whenever_that_is_described(
    lane: Lane, *, placeholder_first: bool
) -> None:
    """vLLM's offloading connector names a hash and nothing else."""
    events = [stored([1], [], medium="CPU", block_size=0), stored([1], A)]
    lane.apply(*(events if placeholder_first else reversed(events)))
    lane.apply(removed(1))
    assert lane.tiers(A) == {"CPU": WIDTH}


def test_a_placeholder_finds_the_key_of_a_block_that_has_just_left_the_gpu(lane: Lane) -> None:
    lane.apply(stored([1], A), removed(1), stored([1], [], medium="CPU", block_size=0))
    assert lane.tiers(A) == {"CPU": WIDTH}


# Clearing


def test_clearing_and_storing_in_one_batch_keeps_the_order(lane: Lane) -> None:
    lane.apply(stored([1], A, medium="CPU"), AllBlocksCleared(), stored([2], B))
    assert (lane.tokens(A), lane.tokens(B), len(lane.copies())) == (0, WIDTH, 1)


def test_a_cleared_lane_adopts_nothing_from_before(lane: Lane) -> None:
    lane.apply(stored([2], B, parent=1), AllBlocksCleared(), stored([1], A))
    assert lane.tokens(A + B) == WIDTH


# Bad events


def test_one_bad_event_never_costs_its_batch(lane: Lane) -> None:
    lane.apply(stored([1], A), Rejected("no such event"), stored([3], [-1, *B[1:]], parent=1), stored([2], B, parent=1))
    assert (lane.tokens(A + B), lane.stats.rejected_events) == (2 * WIDTH, 2)
    assert "-1" in lane.stats.last_rejection
    assert len(lane.copies()) == 2


def test_a_bad_orphan_leaves_nothing_behind(lane: Lane) -> None:
    lane.apply(stored([1, 2], [*A, *B[1:], -1], parent=9))
    assert (lane.stats.orphans, lane.copies(), lane.stats.rejected_events) == (0, {}, 1)


# Namespaces


def test_salted_prompts_hit_salted_blocks_and_plain_ones_plain(lane: Lane) -> None:
    lane.apply(stored([1], A, cache_salt="s"), stored([2], B, parent=1, cache_salt="s"), stored([3], A))
    assert lane.tokens(A + B, cache_salt="s") == 2 * WIDTH
    assert lane.tokens(A + B) == WIDTH
    assert lane.tokens(A + B, cache_salt="other") == 0


def test_vllm_names_salt_and_adapter_in_the_extra_keys(lane: Lane) -> None:
    lane.apply(
        stored([1, 2], A + B, extra_keys=[["s"], None]),
        stored([3, 4], A + B, lora_name="ad", lora_id=7, extra_keys=[["ad"], ["ad"]]),
        stored([5, 6], A + B, lora_name="ad", lora_id=7, extra_keys=[["ad", "s"], ["ad"]]),
    )
    assert lane.tokens(A + B) == 0
    assert lane.tokens(A + B, cache_salt="s") == 2 * WIDTH
    assert lane.tokens(A + B, lora_name="ad") == 2 * WIDTH
    assert lane.tokens(A + B, lora_name="ad", cache_salt="s") == 2 * WIDTH
    assert lane.tokens(A + B, lora_name="s") == 0


def test_an_adapter_known_by_number_only_is_never_the_base_model(lane: Lane) -> None:
    lane.apply(stored([1], A, lora_id=7))
    assert lane.tokens(A) == 0
    assert lane.tokens(A, lora_name="id:7") == WIDTH


@pytest.mark.parametrize("image", [["img", 3], "img", b"digest"])
def test_a_text_prompt_never_hits_a_multimodal_block_of_the_same_ids(lane: Lane, image: object) -> None:
    lane.apply(stored([1, 2, 3], A + B + C, extra_keys=[None, [image], None]))
    assert lane.tokens(A + B + C) == WIDTH
    assert lane.stats.unkeyed == 0


def test_images_under_a_salt_match_no_text_of_that_salt(lane: Lane) -> None:
    lane.apply(stored([1], A, extra_keys=[[["img", 3], "s"]]))
    assert lane.tokens(A, cache_salt="s") == 0


def test_extra_keys_that_cannot_be_told_apart_give_no_keys(lane: Lane) -> None:
    lane.apply(stored([1, 2], A + B, extra_keys=[["s"]]))
    assert (lane.tokens(A), lane.tokens(A, cache_salt="s"), lane.stats.unusable) == (0, 0, {"extra_keys": 1})
    assert len(lane.copies()) == 2


# Groups


def test_only_full_attention_decides_and_the_same_hash_in_two_groups_is_two_blocks(lane: Lane) -> None:
    window: dict[str, Any] = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
    full: dict[str, Any] = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    lane.apply(stored([1, 2], A + B, **full), stored([1, 2], A + B, **window), removed(2, group=0))
    assert lane.tokens(A + B) == WIDTH
    assert lane.copies() == {(1, "GPU", 0): 1, (1, "GPU", 1): 1, (2, "GPU", 1): 1}
    assert lane.stats.unusable == {"foreign_group": 1}


def test_a_sparse_store_is_held_but_names_no_content(lane: Lane) -> None:
    """Which of the three chunks the hash stands for, vLLM does not say."""
    lane.apply(stored([3], A + B + C), stored([], A), stored([1], A))
    assert (lane.tokens(A), lane.tokens(C), lane.stats.unusable) == (WIDTH, 0, {"sparse": 2})
    assert lane.copies() == {(3, "GPU", None): 1, (1, "GPU", None): 1}


def test_kinds_learnt_late_demote_and_promote_what_came_before(lane: Lane) -> None:
    lane.apply(stored([1], [], medium="CPU", block_size=0, group_idx=1), stored([1], A, group_idx=0))
    assert lane.tokens(A) == WIDTH
    lane.apply(stored([1], A, group_idx=1, kv_cache_spec_kind="mamba"))
    assert lane.tokens(A) == 0, "group 0 has no kind in a stream that names kinds"
    lane.apply(stored([2], B, parent=1, group_idx=0, kv_cache_spec_kind="mla_attention"))
    assert lane.tokens(A + B) == 0, "the key of block 1 went with its demotion"
    lane.apply(removed(1, group=0), stored([1], A, group_idx=0, kv_cache_spec_kind="mla_attention"))
    assert lane.tiers(A + B) == {"GPU": 2 * WIDTH}


def test_a_removal_without_a_group_finds_blocks_that_have_one(lane: Lane) -> None:
    lane.apply(stored([1], A, group_idx=0), removed(1, group=None))
    assert (lane.copies(), lane.stats.unknown_removals) == ({}, 0)


# Width


def test_events_win_over_an_advertised_width() -> None:
    lane = Lane(advertised=PAGE_SIZE)
    assert lane.index.width(lane.handle) == PAGE_SIZE
    lane.apply(stored([1], A))
    assert (lane.index.width(lane.handle), lane.tokens(A)) == (WIDTH, WIDTH)
    assert (lane.stats.advertised_width, lane.stats.emitted_width) == (PAGE_SIZE, WIDTH)


def test_a_restarted_engine_may_have_another_width(lane: Lane) -> None:
    lane.apply(stored([1, 2], A + B))
    lane.index.clear(lane.handle)
    assert lane.index.width(lane.handle) is None
    lane.apply(stored([1], A[:3], block_size=3))
    assert (lane.index.width(lane.handle), lane.tokens(A)) == (3, 3)


def test_another_width_without_a_restart_is_followed_too(lane: Lane) -> None:
    lane.apply(stored([1], A), AllBlocksCleared(), stored([2], A[:3], block_size=3))
    assert lane.tokens(A) == 3
    lane.apply(stored([3], A + B, block_size=2 * WIDTH))
    assert lane.tokens(A + B) == 2 * WIDTH
    assert lane.stats.widths_seen == (6, 3, 12)


def test_a_unit_of_a_block_not_full_yet_moves_no_width(lane: Lane) -> None:
    lane.apply(stored([1], A + B, block_size=12), stored([2], C[:3], block_size=3, parent=1))
    assert lane.index.width(lane.handle) == 12
    assert (lane.tokens(A + B + C), lane.stats.unusable) == (12, {"other_width": 1})
    assert len(lane.copies()) == 2


def test_an_unnamed_coarser_group_that_repeats_hashes_moves_no_width(lane: Lane) -> None:
    """vLLM up to 0.19 does not say which group a store belongs to."""
    lane.apply(stored([1, 2], A + B), stored([2], A + B, block_size=12))
    assert (lane.index.width(lane.handle), lane.tokens(A + B)) == (WIDTH, 12)
    assert lane.copies()[2, "GPU", None] == 2


def test_lanes_of_different_widths_answer_in_tokens() -> None:
    index = BlockIndex()
    fine, coarse, silent = index.add_lane(), index.add_lane(), index.add_lane()
    index.apply(fine, batch(stored([1, 2, 3], A + B[:3], block_size=3)))
    index.apply(coarse, batch(stored([1], A)))
    found = index.match(Prompt(A + B), [fine, coarse, silent])
    assert {handle: match.tokens for handle, match in found.items()} == {fine: 9, coarse: 6, silent: 0}


def test_pairs_match_pairs(lane: Lane) -> None:
    tokens = list(range(WIDTH + 1))
    flat = [unit for pair in itertools.pairwise(tokens) for unit in pair]
    lane.apply(stored([1], flat, pairs=True))
    assert (lane.tokens(tokens), lane.tokens(tokens[:-1])) == (WIDTH, 0)
    assert lane.stats.pairs


# Lanes


def test_one_lanes_removal_leaves_the_others_copy() -> None:
    index = BlockIndex()
    first, second = index.add_lane(), index.add_lane()
    for handle in (first, second):
        index.apply(handle, batch(stored([1], A)))
    index.apply(first, batch(removed(1)))
    found = index.match(Prompt(A), [first, second])
    assert (found[first].tokens, found[second].tokens) == (0, WIDTH)


def test_a_removed_lane_leaves_nothing_and_its_handle_is_never_reused() -> None:
    index = BlockIndex()
    gone, other = index.add_lane(), index.add_lane()
    index.apply(gone, batch(stored([1, 2], A + B)))
    index.apply(other, batch(stored([1], A)))
    index.remove_lane(gone)
    index.check_invariants()
    assert len(index) == 1
    new = index.add_lane()
    assert new not in (gone, other)
    assert index.match(Prompt(A), [gone, new, other]).keys() == {new, other}
    with pytest.raises(KeyError):
        index.apply(gone, batch(stored([1], A)))


def test_a_prompt_is_hashed_no_further_than_the_last_matching_lane() -> None:
    index = BlockIndex()
    handle = index.add_lane()
    index.apply(handle, batch(stored([1], A)))
    prompt = Prompt(A + list(range(1_000, 1_000 + 600 * WIDTH)))
    index.match(prompt, [handle])
    assert prompt.keys(width=WIDTH).hashed < 20


def test_chains_that_come_and_go_leave_nothing_behind() -> None:
    """S16 in small: unique tails under one shared prefix, stored and removed, level off at the bounds."""
    limits = LaneLimits(orphans=50, departed=50)
    index = BlockIndex(limits=limits)
    handle = index.add_lane()
    index.apply(handle, batch(stored([0], A)))
    rng = random.Random(3)
    for name in range(1, 5_000):
        tail = rng.choices(range(100_000), k=WIDTH)
        orphan = stored([2 * name + 10**7], tail, parent=10**9 + name)
        index.apply(handle, batch(stored([name], tail, parent=0), orphan))
        index.apply(handle, batch(removed(name, 2 * name + 10**7)))
    index.check_invariants()
    stats = index.stats(handle)
    assert (len(index), stats.blocks, stats.orphans, stats.unkeyed) == (1, {"GPU": 1}, 0, 0)
    index.apply(handle, batch(removed(0)))
    assert (len(index), index.blocks(handle)) == (0, [])


# Against a naive model

TOKENS = st.integers(0, 1)
Chain = tuple[tuple[int, ...], ...]


class NaiveLane:
    """Copies by (hash, tier), the parent that each held hash was described with, and the hashes placed so far.

    A block's place is known once it was described behind a known place; it stays known when the block is removed. A
    prompt matches while its next block is there and has its place.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.copies: Counter[tuple[int, str]] = Counter()
        self.parents: dict[int, int | None] = {}
        self.placed: set[int] = set()

    def store(self, names: list[int], *, parent: int | None, tier: str, described: bool) -> None:
        for name in names:
            self.copies[name, tier] += 1
            if described:
                self.parents.setdefault(name, parent)
            parent = name
        while found := {name for name, above in self.parents.items() if above is None or above in self.placed}:
            self.placed |= found
            self.parents = {name: above for name, above in self.parents.items() if name not in found}

    def remove(self, name: int, tiers: Sequence[str]) -> None:
        for tier in tiers:
            self.copies[name, tier] = max(0, self.copies[name, tier] - 1)
        if not any(self.copies[name, tier] for tier in ("GPU", "CPU")):
            self.parents.pop(name, None)

    def match(self, chain: Chain) -> tuple[int, dict[str, int]]:
        tiers: Counter[str] = Counter()
        for end in range(1, len(chain) + 1):
            name = name_of(chain[:end])
            here = [tier for tier in ("GPU", "CPU") if self.copies[name, tier]]
            if not here or name not in self.placed:
                break
            tiers[here[0]] += WIDTH
        return tiers.total(), dict(tiers)


def name_of(chain: Chain) -> int:
    """An engine's hash of a chain: other numbers than ours, so that nothing matches by accident."""
    return block_keys([token for block in chain for token in block], width=WIDTH, parent=99)[-1]


class IndexAgainstModel(RuleBasedStateMachine):
    """Stores with and without known parents, duplicates, tiers, removals and restarts, on lanes that come and go."""

    @initialize()
    def start(self) -> None:
        self.index = BlockIndex()
        self.lanes: dict[LaneHandle, NaiveLane] = {}
        self.chains: set[Chain] = set()
        self.add_lane()

    @rule()
    def add_lane(self) -> None:
        if len(self.lanes) < 3:
            self.lanes[self.index.add_lane()] = NaiveLane()

    @precondition(lambda self: len(self.lanes) > 1)
    @rule(data=st.data())
    def remove_lane(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(sorted(self.lanes)))
        self.index.remove_lane(handle)
        del self.lanes[handle]

    @rule(
        data=st.data(),
        blocks=st.lists(TOKENS, min_size=1, max_size=4),
        first=st.integers(0, 3),
        tier=st.sampled_from(["GPU", "GPU", "CPU"]),
        described=st.booleans(),
    )
    def store(self, data: st.DataObject, blocks: list[int], first: int, tier: str, *, described: bool) -> None:
        """Store a chain's blocks from ``first`` on; its parent may never have been heard of."""
        handle = data.draw(st.sampled_from(sorted(self.lanes)))
        chain: Chain = tuple((block,) * WIDTH for block in blocks)
        self.chains.add(chain)
        first = min(first, len(chain) - 1)
        names = [name_of(chain[: end + 1]) for end in range(first, len(chain))]
        parent = name_of(chain[:first]) if first else None
        tokens = [token for block in chain[first:] for token in block]
        placeholder = tier == "CPU" and not described
        event = stored(names, [] if placeholder else tokens, parent=parent, medium=tier)
        self.index.apply(handle, batch(event))
        self.lanes[handle].store(names, parent=parent, tier=tier, described=not placeholder)

    @rule(data=st.data(), medium=st.sampled_from(["GPU", "CPU", None]))
    def remove(self, data: st.DataObject, medium: str | None) -> None:
        handle = data.draw(st.sampled_from(sorted(self.lanes)))
        copies = self.lanes[handle].copies
        held = sorted({name for (name, _), count in copies.items() if count})
        if not held:
            return
        name = data.draw(st.sampled_from(held))
        self.index.apply(handle, batch(removed(name, medium=medium)))
        self.lanes[handle].remove(name, ("GPU", "CPU") if medium is None else (medium,))

    @rule(data=st.data(), restart=st.booleans())
    def clear(self, data: st.DataObject, *, restart: bool) -> None:
        handle = data.draw(st.sampled_from(sorted(self.lanes)))
        if restart:
            self.index.clear(handle)
        else:
            self.index.apply(handle, batch(AllBlocksCleared()))
        self.lanes[handle].clear()

    @invariant()
    def parts_agree(self) -> None:
        self.index.check_invariants()

    @invariant()
    def the_engines_truth_is_held(self) -> None:
        for handle, lane in self.lanes.items():
            expected = {BlockRow(name, tier, None, count) for (name, tier), count in lane.copies.items() if count}
            assert set(self.index.blocks(handle)) == expected

    @invariant()
    def prompts_match_as_in_the_model(self) -> None:
        for chain in self.chains:
            prompt = Prompt([token for block in chain for token in block])
            found = self.index.match(prompt, self.lanes)
            assert self.index.holders(prompt) == {lane: match for lane, match in found.items() if match.tokens}
            for handle, lane in self.lanes.items():
                assert lane.match(chain) == (found[handle].tokens, found[handle].tiers)


TestIndexAgainstModel = IndexAgainstModel.TestCase
TestIndexAgainstModel.settings = settings(max_examples=60, stateful_step_count=30)
