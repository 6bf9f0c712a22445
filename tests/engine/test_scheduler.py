"""Requests share the cache, wait, are preempted and aborted, and every answer is what the prompt alone determines."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from slot_engine import GEOMETRY, WIDTH, Engine, expected_answer, fold, lengths, tokens_of

from contract.events import AllBlocksCleared
from engine.cache.states import StateRoom
from engine.request import Namespace, RequestError, SamplingParams
from engine.runner.base import Chunk
from engine.scheduler import Limits


def test_a_prompt_is_computed_and_continued() -> None:
    engine = Engine(total_blocks=10)
    prompt = tokens_of(1, 2, loose=1)
    engine.serve(0, prompt, new=9)
    assert engine.answers[0] == expected_answer(prompt, SamplingParams(max_new_tokens=9, ignore_eos=True), eos=None)[0]
    assert engine.last[0].finish_reason == "length"


def test_a_repeated_prompt_computes_only_what_follows_its_last_whole_block() -> None:
    engine = Engine(total_blocks=10)
    prompt = tokens_of(1, 2, loose=2)
    assert engine.serve(0, prompt).cached_tokens == 0
    before = engine.runner.computed
    assert engine.serve(1, prompt).cached_tokens == 2 * WIDTH
    assert engine.runner.computed - before == 2
    assert engine.answers[0] == engine.answers[1]


def test_at_least_the_last_prompt_token_is_computed() -> None:
    engine = Engine(total_blocks=10)
    prompt = tokens_of(1, 2)
    engine.serve(0, prompt)
    assert engine.serve(1, prompt).cached_tokens == WIDTH


def test_an_answer_is_cached_for_the_next_turn_but_its_last_token_is_not() -> None:
    engine = Engine(total_blocks=10)
    prompt = tokens_of(1)
    engine.serve(0, prompt, new=WIDTH + 1)
    second_turn = [*prompt, *engine.answers[0], 9]
    assert engine.serve(1, second_turn).cached_tokens == 2 * WIDTH


def test_a_long_prompt_is_computed_in_chunks_that_are_announced_as_they_are_computed() -> None:
    engine = Engine(total_blocks=10, limits=Limits(context_length=99, max_running=4, max_waiting=9, prefill_tokens=8))
    engine.add(0, tokens_of(1, 2, 3, loose=1))
    announced = []
    engine.scheduler.take_events()
    while not engine.scheduler.idle:
        engine.step()
        announced.append(sum(len(event.block_hashes) for event in engine.scheduler.take_events()))
    assert [lengths(step) for step in engine.steps] == [{0: 8}, {0: 8}, {0: 3}]
    assert announced == [1, 1, 1]


def test_decoding_goes_on_while_a_long_prompt_is_computed() -> None:
    engine = Engine(total_blocks=20, limits=Limits(context_length=99, max_running=4, max_waiting=9, prefill_tokens=7))
    engine.add(0, [5], new=20)
    engine.step()
    engine.add(1, tokens_of(1, 2, loose=3))
    engine.step()
    engine.step()
    engine.step()
    assert [lengths(step) for step in engine.steps[1:]] == [{0: 1, 1: 7}, {0: 1, 1: 7}, {0: 1, 1: 1}]


def test_one_budget_serves_prompts_in_order_of_arrival() -> None:
    engine = Engine(total_blocks=20, limits=Limits(context_length=99, max_running=4, max_waiting=9, prefill_tokens=10))
    for request_id in range(3):
        engine.add(request_id, [request_id + 10] * 6)
    engine.step()
    engine.step()
    assert [lengths(step) for step in engine.steps] == [{0: 6, 1: 4}, {1: 2, 2: 6}]


def test_no_more_requests_run_than_may() -> None:
    engine = Engine(total_blocks=20, limits=Limits(context_length=99, max_running=2, max_waiting=9, prefill_tokens=99))
    for request_id in range(3):
        engine.add(request_id, [request_id], new=2)
    engine.step()
    load = engine.scheduler.load()
    assert (load.running, load.waiting) == (2, 1)
    engine.run()
    assert sorted(engine.last) == [0, 1, 2]


def test_equal_prompts_computed_side_by_side_end_up_in_one_copy() -> None:
    engine = Engine(total_blocks=10)
    prompt = tokens_of(1, 2, loose=1)
    engine.add(0, prompt, new=3)
    engine.add(1, prompt, new=3)
    engine.step()
    assert engine.scheduler.load().used_tokens == 4 * WIDTH  # two shared blocks, and one of each request's own
    engine.run()
    assert engine.answers[0] == engine.answers[1]


def test_the_cache_gives_way_to_new_requests() -> None:
    engine = Engine(total_blocks=3)
    for request_id in range(5):
        engine.serve(request_id, tokens_of(request_id, request_id + 10, loose=1))
    assert engine.scheduler.load().totals.evicted_tokens > 0
    assert engine.serve(9, tokens_of(4, 14, loose=1)).cached_tokens == 2 * WIDTH


def test_a_request_waits_until_its_blocks_can_be_had() -> None:
    engine = Engine(total_blocks=4)
    engine.add(0, tokens_of(1, 2, loose=2), new=5)
    engine.add(1, tokens_of(3, 4, loose=2), new=5)
    engine.step()
    assert engine.scheduler.load().waiting == 1
    engine.run()
    assert len(engine.answers[1]) == 5
    assert engine.scheduler.load().totals.preemptions == 0


def test_the_request_admitted_last_gives_its_blocks_up_and_still_answers_rightly() -> None:
    engine = Engine(total_blocks=6)
    prompts = [tokens_of(1, loose=1), tokens_of(2, loose=1)]
    for request_id, prompt in enumerate(prompts):
        engine.add(request_id, prompt, new=4 * WIDTH)
    engine.run()
    assert engine.scheduler.load().totals.preemptions > 0
    for request_id, prompt in enumerate(prompts):
        sampling = SamplingParams(max_new_tokens=4 * WIDTH, ignore_eos=True)
        assert engine.answers[request_id] == expected_answer(prompt, sampling, eos=None)[0]
    finished = list(engine.last)
    assert finished[0] == 0, "the request admitted first was never preempted"


def test_a_preempted_request_is_resumed_before_those_that_came_after_it() -> None:
    engine = Engine(total_blocks=6, limits=Limits(context_length=99, max_running=2, max_waiting=9, prefill_tokens=99))
    for request_id in range(3):
        engine.add(request_id, tokens_of(request_id + 1, loose=1), new=4 * WIDTH)
    while engine.scheduler.load().totals.preemptions == 0:
        engine.step()
    engine.steps.clear()
    engine.run()
    first_seen: dict[int, int] = {}
    for number, step in enumerate(engine.steps):
        for chunk in step:
            first_seen.setdefault(chunk.request_id, number)
    assert first_seen[1] <= first_seen[2]


def test_what_a_preempted_request_computed_itself_is_no_cache_hit() -> None:
    engine = Engine(total_blocks=6)
    for request_id in range(2):
        engine.add(request_id, tokens_of(request_id + 1, loose=1), new=4 * WIDTH)
    engine.run()
    assert engine.scheduler.load().totals.preemptions > 0
    assert [engine.last[request_id].cached_tokens for request_id in range(2)] == [0, 0]
    assert engine.scheduler.load().totals.cached_tokens == 0


def test_aborting_while_waiting_running_or_computed_frees_everything() -> None:
    engine = Engine(total_blocks=8, limits=Limits(context_length=99, max_running=2, max_waiting=9, prefill_tokens=99))
    for request_id in range(3):
        engine.add(request_id, tokens_of(request_id, loose=1), new=9)
    engine.step()
    engine.take({2: engine.scheduler.abort(2)})
    engine.take({0: engine.scheduler.abort(0)})
    chunks = engine.scheduler.schedule()
    aborted = engine.scheduler.abort(1)
    assert engine.scheduler.commit(engine.runner.run(chunks)) == {}
    engine.take({1: aborted})
    assert {output.finish_reason for output in engine.last.values()} == {"abort"}
    assert engine.scheduler.idle
    assert engine.scheduler.load().used_tokens == 0
    assert engine.scheduler.load().pending_prefill_tokens == 0


def test_aborting_who_is_not_here_does_nothing() -> None:
    engine = Engine(total_blocks=8)
    assert engine.scheduler.abort(5) is None
    engine.serve(0, [1])
    assert engine.scheduler.abort(0) is None


def test_an_aborted_prompt_stays_cached_as_far_as_it_was_computed() -> None:
    engine = Engine(total_blocks=8, limits=Limits(context_length=99, max_running=2, max_waiting=9, prefill_tokens=8))
    prompt = tokens_of(1, 2, 3)
    engine.add(0, prompt)
    engine.step()
    engine.scheduler.abort(0)
    assert engine.serve(1, prompt).cached_tokens == WIDTH


def test_namespaces_share_nothing() -> None:
    engine = Engine(total_blocks=20)
    prompt = tokens_of(1, 2, loose=1)
    for request_id, namespace in enumerate([Namespace(), Namespace("tenant"), Namespace(cache_salt="salt")]):
        engine.add(request_id, prompt, namespace=namespace)
        engine.run()
        assert engine.last[request_id].cached_tokens == 0
    engine.add(9, prompt, namespace=Namespace("tenant"))
    engine.run()
    assert engine.last[9].cached_tokens == 2 * WIDTH


@pytest.mark.parametrize(
    ("sampling", "ends_with"),
    [
        (SamplingParams(max_new_tokens=50), "stop"),
        (SamplingParams(max_new_tokens=50, ignore_eos=True), "length"),
        (SamplingParams(max_new_tokens=50, ignore_eos=True, stop_token_ids=(0,)), "stop"),
    ],
)
def test_an_answer_ends_at_a_stop_token_unless_told_otherwise(sampling: SamplingParams, ends_with: str) -> None:
    engine = Engine(total_blocks=20, eos=2)
    engine.scheduler.add(0, [1, 1], sampling)
    engine.run()
    assert (engine.answers[0], engine.last[0].finish_reason) == expected_answer([1, 1], sampling, eos=2)
    assert engine.last[0].finish_reason == ends_with


def test_no_new_tokens_fills_the_cache_and_answers_nothing() -> None:
    engine = Engine(total_blocks=8)
    prompt = tokens_of(1, 2)
    output = engine.serve(0, prompt, new=0)
    assert (output.token_ids, output.finish_reason) == ([], "length")
    assert engine.serve(1, [*prompt, 5]).cached_tokens == 2 * WIDTH


@pytest.mark.parametrize(
    ("prompt", "new", "complaint"),
    [
        (0, 1, "0 prompt tokens and 1 new"),
        (5, -1, "5 prompt tokens and -1 new"),
        (40, 11, "40 prompt tokens and 11 new ones do not fit the context length of 50 tokens"),
        (24, 2, "24 prompt tokens and 2 new ones need 5 blocks of 6 tokens, the cache has 4"),
    ],
)
def test_what_can_never_finish_is_refused_with_its_numbers(prompt: int, new: int, complaint: str) -> None:
    limits = Limits(context_length=50, max_running=4, max_waiting=9, prefill_tokens=99)
    engine = Engine(total_blocks=4, limits=limits)
    with pytest.raises(RequestError, match=complaint):
        engine.add(0, [1] * prompt, new=new)
    assert engine.scheduler.idle


def test_the_longest_request_that_fits_the_cache_runs_alone_to_its_end() -> None:
    engine = Engine(total_blocks=4)
    engine.serve(0, tokens_of(1, 2, 3, loose=1), new=WIDTH)  # its last token is never stored: 24 tokens are
    assert len(engine.answers[0]) == WIDTH


@pytest.mark.parametrize("bad", [-1, 2**64])
def test_a_token_id_that_no_block_can_hold_is_refused(bad: int) -> None:
    engine = Engine(total_blocks=4)
    with pytest.raises(RequestError, match=str(bad)):
        engine.add(0, [1, bad])


def test_the_cache_is_flushed_only_when_idle() -> None:
    engine = Engine(total_blocks=8)
    engine.add(0, tokens_of(1, 2), new=3)
    engine.step()
    engine.scheduler.take_events()
    assert not engine.scheduler.flush()
    engine.run()
    assert engine.scheduler.flush()
    assert engine.scheduler.take_events()[-1] == AllBlocksCleared()
    assert engine.scheduler.held_events() == []
    assert engine.serve(1, tokens_of(1, 2)).cached_tokens == 0


def test_the_load_counts_tokens_running_waiting_and_kept() -> None:
    limits = Limits(context_length=99, max_running=1, max_waiting=9, prefill_tokens=8)
    engine = Engine(total_blocks=8, limits=limits)
    engine.add(0, tokens_of(1, 2, loose=1), new=2)
    engine.add(1, tokens_of(3))
    engine.step()
    load = engine.scheduler.load()
    assert (load.running, load.waiting, load.max_running) == (1, 1, 1)
    assert (load.used_tokens, load.evictable_tokens, load.total_tokens) == (3 * WIDTH, 0, 8 * WIDTH)
    assert load.pending_prefill_tokens == 5 + 6
    engine.run()
    load = engine.scheduler.load()
    assert (load.used_tokens, load.evictable_tokens) == (0, 3 * WIDTH)
    assert (load.totals.prompt_tokens, load.totals.prefilled_tokens, load.totals.generated_tokens) == (19, 19, 3)


class SchedulerUnderFire(RuleBasedStateMachine):
    """Arrivals, aborts and flushes at random moments over a cache too small for them."""

    @initialize(
        total_blocks=st.integers(3, 9),
        max_running=st.integers(1, 5),
        prefill_tokens=st.integers(1, 20),
        eos=st.none() | st.just(2),
        snapshots=st.none() | st.integers(1, 7),
        blocks_apart=st.integers(1, 2),
    )
    def start(
        self,
        total_blocks: int,
        max_running: int,
        prefill_tokens: int,
        eos: int | None,
        snapshots: int | None,
        blocks_apart: int,
    ) -> None:
        limits = Limits(context_length=45, max_running=max_running, max_waiting=99, prefill_tokens=prefill_tokens)
        states = snapshots and StateRoom(running=max_running, snapshots=snapshots, interval=blocks_apart * WIDTH)
        self.engine = Engine(total_blocks=total_blocks, limits=limits, eos=eos, states=states)
        self.eos = eos
        self.asked: dict[int, tuple[list[int], SamplingParams]] = {}
        self.aborted: set[int] = set()
        self.held: Counter[object] = Counter()

    @rule(
        letters=st.lists(st.integers(0, 1), max_size=4),
        loose=st.integers(0, WIDTH),
        new=st.integers(0, 20),
        ignore_eos=st.booleans(),
        namespace=st.sampled_from([Namespace(), Namespace("tenant"), Namespace(cache_salt="salt")]),
        copies=st.integers(1, 3),
    )
    def arrive(
        self, letters: list[int], loose: int, new: int, ignore_eos: bool, namespace: Namespace, copies: int
    ) -> None:
        sampling = SamplingParams(max_new_tokens=new, ignore_eos=ignore_eos)
        for _ in range(copies):
            self._arrive(tokens_of(*letters, loose=loose), sampling, namespace)

    def _arrive(self, prompt: list[int], sampling: SamplingParams, namespace: Namespace) -> None:
        request_id, new = len(self.asked), sampling.max_new_tokens
        stored = GEOMETRY.blocks_for(len(prompt) + max(new - 1, 0))
        load = self.engine.scheduler.load()
        if prompt and len(prompt) + new <= 45 and stored * WIDTH <= load.total_tokens:
            self.engine.scheduler.add(request_id, prompt, sampling, namespace)
            self.asked[request_id] = (prompt, sampling)
        else:
            with pytest.raises(RequestError):
                self.engine.scheduler.add(request_id, prompt, sampling, namespace)

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            scheduler = self.engine.scheduler
            was_idle = scheduler.idle
            self.engine.step()
            assert was_idle == (not self.engine.steps[-1]), "a step computes nothing though there is work"

    def alive(self) -> list[int]:
        ended = {request_id for request_id, output in self.engine.last.items() if output.finish_reason is not None}
        return [request_id for request_id in self.asked if request_id not in ended]

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), during_a_step=st.booleans())
    def abort(self, data: st.DataObject, during_a_step: bool) -> None:
        scheduler = self.engine.scheduler
        request_id = data.draw(st.sampled_from(self.alive()))
        chunks = scheduler.schedule() if during_a_step else []
        output = scheduler.abort(request_id)
        assert output is not None
        assert output.finish_reason == "abort"
        self.aborted.add(request_id)
        self.engine.take({request_id: output})
        if chunks:
            self.engine.take(scheduler.commit(self.engine.runner.run(chunks)))

    @rule()
    def flush(self) -> None:
        assert self.engine.scheduler.flush() == (not self.alive())

    @invariant()
    def events_tell_what_is_held(self) -> None:
        self.held = fold(self.held, self.engine.scheduler.take_events())
        assert self.held == fold(Counter(), self.engine.scheduler.held_events())

    @invariant()
    def books_balance(self) -> None:
        self.engine.scheduler.check_invariants()
        load = self.engine.scheduler.load()
        assert load.running + load.waiting == len(self.alive())

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.run()
        assert self.alive() == []
        for request_id, (prompt, sampling) in self.asked.items():
            answer, reason = expected_answer(prompt, sampling, eos=self.eos)
            if request_id in self.aborted:
                assert answer[: len(self.engine.answers[request_id])] == self.engine.answers[request_id]
            else:
                assert (self.engine.answers[request_id], self.engine.last[request_id].finish_reason) == (answer, reason)
        load = self.engine.scheduler.load()
        assert (load.used_tokens, load.pending_prefill_tokens) == (0, 0)
        assert self.engine.scheduler.flush()
        self.engine.scheduler.check_invariants()
        load = self.engine.scheduler.load()
        assert (load.evictable_tokens, load.held_snapshots) == (0, 0)


TestSchedulerUnderFire = SchedulerUnderFire.TestCase
TestSchedulerUnderFire.settings = settings(max_examples=80, stateful_step_count=30)


def test_a_crowd_over_a_small_cache_is_served_rightly() -> None:
    seed = 20250615
    print(f"seed {seed}")
    random = Random(seed)
    limits = Limits(context_length=99, max_running=6, max_waiting=999, prefill_tokens=16)
    engine = Engine(total_blocks=14, limits=limits)
    prompts = {}
    for request_id in range(150):
        letters = [random.choice((1, 2)) for _ in range(random.randrange(5))]
        prompts[request_id] = tokens_of(*letters, loose=random.randrange(1, 2 * WIDTH))
        engine.add(request_id, prompts[request_id], new=random.randrange(1, 40))
        for _ in range(random.randrange(4)):
            engine.step()
    engine.run()
    for request_id, prompt in prompts.items():
        sampling = SamplingParams(max_new_tokens=len(engine.answers[request_id]), ignore_eos=True)
        assert engine.answers[request_id] == expected_answer(prompt, sampling, eos=None)[0]
    totals = engine.scheduler.load().totals
    assert min(totals.preemptions, totals.cached_tokens, totals.evicted_tokens) > 0
    assert engine.scheduler.flush()
    engine.scheduler.check_invariants()


def test_equal_calls_give_equal_steps() -> None:
    def record() -> list[list[Chunk]]:
        engine = Engine(
            total_blocks=6, limits=Limits(context_length=99, max_running=3, max_waiting=9, prefill_tokens=7)
        )
        for request_id in range(5):
            engine.add(request_id, tokens_of(request_id % 2, request_id, loose=1), new=8)
        engine.run()
        return engine.steps

    assert record() == record()
