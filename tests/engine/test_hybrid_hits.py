"""With states beside the blocks, a prefix is a hit only as far as both serve it; snapshots are few and well placed."""

from __future__ import annotations

from collections import Counter
from math import lcm
from random import Random

import pytest
from slot_engine import GEOMETRY, WIDTH, Engine, expected_answer, fold, tokens_of

from contract.events import Event
from engine.cache.prefix_cache import PrefixCache
from engine.cache.states import StateRoom
from engine.request import SamplingParams
from engine.scheduler import Limits

LIMITS = Limits(context_length=1000, max_running=4, max_waiting=100, prefill_tokens=1000)


def hybrid(*, total_blocks: int = 100, snapshots: int = 20, interval: int = WIDTH, limits: Limits = LIMITS) -> Engine:
    room = StateRoom(running=limits.max_running, snapshots=snapshots, interval=interval)
    return Engine(total_blocks=total_blocks, limits=limits, states=room)


def test_a_repeated_prompt_computes_only_what_follows_its_last_whole_block() -> None:
    engine = hybrid()
    prompt = tokens_of(1, 2, 3, loose=2)
    assert engine.serve(0, prompt).cached_tokens == 0
    assert engine.serve(1, prompt).cached_tokens == 3 * WIDTH
    assert engine.answers[0] == engine.answers[1]


def test_a_prompt_of_whole_blocks_is_found_up_to_its_last_block_but_one() -> None:
    engine = hybrid()
    prompt = tokens_of(1, 2, 3)
    engine.serve(0, prompt)
    assert engine.serve(1, prompt).cached_tokens == 2 * WIDTH


def test_the_next_turn_of_a_conversation_continues_behind_the_answer() -> None:
    engine = hybrid()
    prompt = tokens_of(1, loose=1)
    engine.serve(0, prompt, new=2 * WIDTH + 1)
    assert engine.serve(1, [*prompt, *engine.answers[0], 9]).cached_tokens == 3 * WIDTH


def test_what_blocks_promise_to_repeated_prompts_and_next_turns_states_keep() -> None:
    """A router that goes by events, which tell of blocks only, predicts these hits exactly."""
    random, engine = Random(5), hybrid(total_blocks=500, snapshots=100)
    request_ids = iter(range(99))
    for opening in range(4):
        prompt = [opening] * random.randint(1, 3 * WIDTH)
        for _ in range(5):
            turn, repeated = next(request_ids), next(request_ids)
            engine.serve(turn, prompt, new=random.randint(1, 2 * WIDTH))
            cached = engine.serve(repeated, prompt).cached_tokens
            assert cached == (len(prompt) - 1) // WIDTH * WIDTH
            prompt = [*prompt, *engine.answers[turn], *[9] * random.randint(1, WIDTH)]
    assert engine.scheduler.load().totals.cached_tokens > 0
    assert engine.scheduler.load().totals.stateless_tokens == 0


def test_where_prompts_part_a_state_is_kept_from_the_second_one_on() -> None:
    """Nobody knows a shared prefix before it is shared: the first to follow computes it again, the next ones do not."""
    engine = hybrid()
    engine.serve(0, tokens_of(1, 2, 3, 4))
    assert engine.serve(1, tokens_of(1, 2, 5, 6)).cached_tokens == 0
    assert engine.scheduler.load().totals.stateless_tokens == 2 * WIDTH
    assert engine.serve(2, tokens_of(1, 2, 7, 8)).cached_tokens == 2 * WIDTH
    assert engine.scheduler.load().totals.stateless_tokens == 2 * WIDTH


def test_a_state_that_is_gone_makes_the_hit_fall_back_to_an_earlier_one() -> None:
    engine = hybrid(snapshots=2)
    prompt = tokens_of(1, 2, loose=1)
    engine.serve(0, prompt)
    engine.serve(1, tokens_of(1, 2, 3, 4, loose=1))
    engine.serve(2, prompt)  # its state is used last
    assert engine.scheduler.load().held_snapshots == 2
    engine.serve(4, tokens_of(5, loose=1))  # one state more: that behind 1 2 3 4 goes, its blocks stay
    assert engine.scheduler.load().totals.evicted_snapshots == 1
    assert engine.serve(5, tokens_of(1, 2, 3, 4, loose=1)).cached_tokens == 2 * WIDTH
    engine.serve(6, tokens_of(6, loose=1))
    engine.serve(7, tokens_of(7, loose=1))
    assert engine.serve(8, prompt).cached_tokens == 0
    assert engine.answers[8] == engine.answers[0]


def test_snapshots_go_with_the_nodes_that_own_them() -> None:
    engine = hybrid(total_blocks=6)
    for letter in range(9):
        engine.serve(letter, tokens_of(letter, letter, loose=1))
        assert engine.scheduler.load().held_snapshots <= 3
    assert engine.scheduler.load().totals.evicted_snapshots == 0
    assert engine.scheduler.flush()
    engine.scheduler.check_invariants()
    assert engine.scheduler.load().held_snapshots == 0


def test_a_prompt_leaves_two_states_however_many_chunks_it_takes() -> None:
    """One where the same prompt will be looked up, one at the end of the answer; those between are overwritten."""
    limits = Limits(context_length=1000, max_running=4, max_waiting=9, prefill_tokens=2 * WIDTH)
    engine = hybrid(limits=limits)
    engine.serve(0, tokens_of(*range(20), loose=1), new=3 * WIDTH)
    assert engine.scheduler.load().held_snapshots == 2


def test_a_prompt_given_up_half_way_is_continued_from_its_last_chunk() -> None:
    limits = Limits(context_length=1000, max_running=4, max_waiting=9, prefill_tokens=2 * WIDTH)
    engine = hybrid(limits=limits)
    prompt = tokens_of(*range(20), loose=1)
    engine.add(0, prompt)
    for _ in range(5):
        engine.step()
    engine.scheduler.abort(0)
    assert engine.serve(1, prompt).cached_tokens == 10 * WIDTH


def test_a_state_kept_inside_a_run_of_blocks_is_found_there() -> None:
    """States are kept every 2 blocks, 3 are computed when the request is given up: the state is behind the second."""
    limits = Limits(context_length=1000, max_running=4, max_waiting=9, prefill_tokens=3 * WIDTH)
    engine = hybrid(limits=limits, interval=2 * WIDTH)
    engine.add(0, tokens_of(1, 2, 3, 4, 5))
    engine.step()
    engine.scheduler.abort(0)
    assert engine.serve(1, tokens_of(1, 2, 3, 4, 5)).cached_tokens == 2 * WIDTH


def test_a_preempted_request_continues_from_its_own_state_and_answers_rightly() -> None:
    engine = hybrid(total_blocks=6)
    prompts = [tokens_of(1, loose=1), tokens_of(2, loose=1)]
    for request_id, prompt in enumerate(prompts):
        engine.add(request_id, prompt, new=4 * WIDTH)
    engine.run()
    totals = engine.scheduler.load().totals
    assert totals.preemptions > 0
    assert totals.prefilled_tokens < sum(map(len, prompts)) + totals.preemptions * 5 * WIDTH
    for request_id, prompt in enumerate(prompts):
        sampling = SamplingParams(max_new_tokens=4 * WIDTH, ignore_eos=True)
        assert engine.answers[request_id] == expected_answer(prompt, sampling, eos=None)[0]


def test_hits_end_at_common_multiples_of_blocks_and_states() -> None:
    interval = lcm(WIDTH, 4)
    engine = hybrid(interval=interval)
    assert interval == 2 * WIDTH
    prompt = tokens_of(1, 2, 3, loose=1)
    engine.serve(0, prompt)
    assert engine.serve(1, prompt).cached_tokens == 2 * WIDTH
    assert engine.serve(2, tokens_of(1, 2, 3, 4, 5, loose=1)).cached_tokens == 2 * WIDTH
    assert engine.serve(3, tokens_of(1, 2, 3, 4, 6, loose=1)).cached_tokens == 4 * WIDTH


def test_snapshots_off_the_ends_of_blocks_are_refused() -> None:
    room = StateRoom(running=1, snapshots=1, interval=8)
    with pytest.raises(AssertionError, match="snapshots every 8 tokens are not at ends of blocks of 6"):
        PrefixCache(geometry=GEOMETRY, total_blocks=4, states=room)


def test_with_all_snapshot_slots_in_use_requests_run_on_without() -> None:
    engine = hybrid(snapshots=1)
    prompts = {n: tokens_of(n, n, loose=1) for n in range(4)}
    for request_id, prompt in prompts.items():
        engine.add(request_id, prompt, new=3 * WIDTH)
    engine.run()
    for request_id, prompt in prompts.items():
        sampling = SamplingParams(max_new_tokens=3 * WIDTH, ignore_eos=True)
        assert engine.answers[request_id] == expected_answer(prompt, sampling, eos=None)[0]


def test_events_tell_of_blocks_only_whatever_becomes_of_the_states() -> None:
    def events_of(engine: Engine) -> list[Event]:
        for request_id, prompt in enumerate([(1, 2, 3), (1, 2, 4), (1, 5), (1, 2, 3)]):
            engine.serve(request_id, tokens_of(*prompt, loose=1), new=WIDTH)
        return engine.scheduler.take_events()

    plain, few_states = Engine(total_blocks=50), hybrid(total_blocks=50, snapshots=1)
    assert events_of(plain) == events_of(few_states)
    assert fold(Counter(), plain.scheduler.held_events()) == fold(Counter(), few_states.scheduler.held_events())
