"""The rules of others that a simulated fleet can run: what their published formulas say, on numbers small enough."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from bench.fleet.policies.ablation import ABLATED, Without
from bench.fleet.policies.dynamo_cost import DynamoCost
from bench.fleet.policies.history import history
from bench.fleet.policies.sent_tree import SentTree
from bench.fleet.policies.sglang_cache_aware import BALANCE_ABS, MAX_TREE_TOKENS, SglangCacheAware
from bench.fleet.policies.standings import Standings
from bench.fleet.rule import Surroundings, Trip
from bench.fleet.unit_index import BlockPrompt, UnitIndex
from bench.workloads.request import Ask
from contract.events import BlockRemoved, BlockStored, EventBatch
from router.choice.candidate import Candidate, Circumstances
from router.choice.kv_cost import KvAware

WIDTH = 100


def ask(blocks: str, tokens: int | None = None) -> Ask:
    """A letter a block, and half a block behind them unless said otherwise."""
    path = tuple(map(ord, blocks))
    return Ask(0.0, path, WIDTH * len(path) + WIDTH // 2 if tokens is None else tokens, 1)


def around(replicas: int, *, blocks: int = 100, width: int = WIDTH) -> Surroundings:
    index = UnitIndex(block_tokens=width, cache_blocks=1_000)
    handles = [index.add_lane(advertised_width=1) for _ in range(replicas)]
    return Surroundings(index=index, handles=handles, blocks=blocks, block_tokens=width, seed=3)


def hold(fleet: Surroundings, replica: int, blocks: str) -> None:
    """Let a replica announce these blocks; their engine's names are the letters."""
    path = [*map(ord, blocks)]
    stored = BlockStored(block_hashes=path, parent_block_hash=None, token_ids=path, block_size=1, medium="GPU")
    fleet.index.apply(fleet.handles[replica], EventBatch(ts=0.0, events=[stored]))


def drop(fleet: Surroundings, replica: int, blocks: str) -> None:
    removed = BlockRemoved(block_hashes=[*map(ord, blocks)], medium="GPU")
    fleet.index.apply(fleet.handles[replica], EventBatch(ts=0.0, events=[removed]))


@pytest.mark.parametrize("seed", range(5))
def test_standings_draw_from_the_lowest_that_is_there_and_not_excluded(seed: int) -> None:
    random = Random(seed)
    standings, values, there = Standings(8), [0] * 8, set(range(8))
    for _ in range(300):
        replica = random.randrange(8)
        match random.randrange(4):
            case 0 if replica in there and len(there) > 1:
                there.remove(replica)
                standings.left(replica)
            case 1 if replica not in there:
                there.add(replica)
                standings.back(replica)
            case _:
                change = random.randint(-3, 3)
                values[replica] += change
                standings.add(replica, change)
        but = {one for one in range(8) if random.random() < 0.4}
        drawn = standings.draw(random, but=but)
        left = [values[one] for one in there - but]
        assert (drawn is None) == (not left)
        if drawn is not None:
            assert drawn[1] in there - but
            assert drawn[0] == values[drawn[1]] == min(left)
        assert (standings.least, standings.most) == (
            min(map(values.__getitem__, there)),
            max(map(values.__getitem__, there)),
        )


def test_a_draw_gives_all_equals_their_share() -> None:
    standings, random = Standings(4), Random(1)
    standings.add(2, 5)
    drawn = Counter(place for _, place in filter(None, (standings.draw(random) for _ in range(3000))))
    assert drawn.keys() == {0, 1, 3}
    assert min(drawn.values()) > 800


def test_dynamos_cost_counts_waiting_prefill_active_blocks_and_one_block_of_credit_for_each_held() -> None:
    """In tokens: a prompt of 450 and its 4 blocks of 100 cost 850 anywhere, and 300 less where 3 blocks are held."""
    fleet = around(3)
    rule = DynamoCost(fleet)
    hold(fleet, 1, "abc")
    first = rule.send(ask("abcd"), now=0.0)
    assert (first.replica, first.predicted_tokens) == (1, 300)
    # 1 now has 150 tokens to compute and 4 active blocks, of which the next prompt shares 3, and holds 3 of it
    second = rule.send(ask("abcz"), now=0.0)
    assert second.replica == 1, "550 of its own less 300 for overlap less 300 for shared blocks, against 0"
    third = rule.send(ask("xyz"), now=0.0)
    assert third.replica in {0, 2}, "nothing of it is anywhere, so the books decide"
    for trip in (first, second, third):
        trip.first_token(now=1.0)
        trip.finished(cached_tokens=0, now=2.0)
    assert [rule.costs[replica] for replica in range(3)] == [0, 0, 0], "what ended leaves nothing behind"


def test_dynamos_rule_leaves_a_holder_when_more_waits_there_than_is_held() -> None:
    fleet = around(2)
    rule = DynamoCost(fleet)
    hold(fleet, 0, "a")
    for letter in "pqrstuvw":
        rule.send(ask(letter * 1, 150), now=0.0)
    waiting = [rule.costs[replica] for replica in range(2)]
    trips = [rule.send(ask("a"), now=0.0) for _ in range(4)]
    assert waiting[0] == waiting[1], "equal prompts are dealt evenly"
    assert trips[0].replica == 0, "100 tokens of overlap"
    assert {trip.replica for trip in trips} == {0, 1}, "and no further than they are worth"


def test_a_lost_replica_is_chosen_again_only_when_it_is_back() -> None:
    for rule in (DynamoCost(around(2)), SglangCacheAware(around(2))):
        trip: Trip = rule.send(ask("abc"), now=0.0)
        rule.left(trip.replica)
        trip.lost()
        assert {rule.send(ask("abc"), now=0.0).replica for _ in range(5)} == {1 - trip.replica}
        rule.back(trip.replica)
        assert trip.replica in {rule.send(ask(letter), now=0.0).replica for letter in "pqrstu"}


def test_sglangs_rule_follows_its_own_tree_above_half_a_prompt_and_else_the_smallest() -> None:
    rule = SglangCacheAware(around(2))
    first = rule.send(ask("abcd"), now=0.0)
    assert rule.send(ask("abxyz", 501), now=0.0).replica != first.replica, "200 of 501 tokens are less than half"
    assert rule.send(ask("abcz"), now=0.0).replica == first.replica, "300 of 450 are more"
    assert rule.send(ask("abcz"), now=0.0).predicted_tokens == 400


def test_sglangs_rule_takes_the_shortest_queue_when_loads_are_apart_by_both_thresholds() -> None:
    rule = SglangCacheAware(around(2))
    first = rule.send(ask("ab"), now=0.0).replica
    taken = Counter(rule.send(ask("ab"), now=0.0).replica for _ in range(BALANCE_ABS))
    assert taken == {first: BALANCE_ABS}, "one tree until the queues are 64 apart"
    assert rule.send(ask("ab"), now=0.0).replica == 1 - first


def test_the_tree_forgets_each_replicas_longest_unused_ends_first() -> None:
    tree = SentTree(2, room=4)
    tree.insert(0, [1, 2, 3])
    tree.insert(1, [1, 2])
    assert tree.match([1, 2, 3, 4]) == (3, 0)
    assert tree.match([1, 2]) == (2, 1), "who was sent it last"
    tree.insert(0, [1, 7, 8])
    assert tree.match([1, 2, 3]) == (2, 1), "five blocks: the end of the older path is gone"
    tree.clear(1)
    assert tree.match([1, 2, 3]) == (2, 0)
    assert (tree.size(0), tree.size(1)) == (4, 0)
    assert SglangCacheAware(around(1, width=2 * MAX_TREE_TOKENS)), "a tree has room for one block at least"


def test_history_believes_what_it_sent_as_far_as_the_cache_has_room() -> None:
    """Room for four blocks: the first prompt is believed until three of the second push out its end, then more."""
    rule = history(around(1, blocks=4))

    def predicted(blocks: str) -> int:
        trip = rule.send(ask(blocks), now=0.0)
        trip.first_token(now=0.0)
        trip.finished(cached_tokens=0, now=0.0)
        return trip.predicted_tokens

    assert [predicted("abc"), predicted("abc"), predicted("xyz"), predicted("abc")] == [0, 300, 0, 100]


@pytest.mark.parametrize("term", ABLATED)
def test_a_term_that_is_left_out_costs_nothing_and_no_other_term_changes(term: str) -> None:
    lanes = [
        Candidate(held_tokens=900, uncached_tokens=100, waiting_tokens=500, seconds_per_token=1e-3),
        Candidate(held_tokens=0, uncached_tokens=1000, running_tokens=70, regret=0.5, seconds_per_token=1e-3),
    ]
    asked = Circumstances(busy=0.5, rate=1.0, heat=500.0)
    whole, less = (
        [dict(score.terms) for score in rule.choose(lanes, around=asked, random=Random(1)).scores]
        for rule in (KvAware(), Without(term))
    )
    assert sum(terms[term] for terms in whole) > 0
    assert less == [terms | {term: 0.0} for terms in whole]


def test_events_say_what_history_cannot() -> None:
    fleet = around(1)
    prompt = BlockPrompt(ask("abc"), block_tokens=WIDTH)
    hold(fleet, 0, "abc")
    assert fleet.index.match(prompt, fleet.handles)[fleet.handles[0]].tokens == 300
    drop(fleet, 0, "c")
    match = fleet.index.match(prompt, fleet.handles)[fleet.handles[0]]
    assert (match.tokens, match.tiers) == (200, {"GPU": 200})
