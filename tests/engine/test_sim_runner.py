"""The simulated forward pass: its clock, and answers that depend on the cache and on nothing else."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from contract.geometry import Geometry
from engine.request import SamplingParams
from engine.runner.base import Chunk
from engine.runner.sim_runner import SimRunner, SimTiming

GEOMETRY = Geometry(page_size=3, dcp_size=2)
INSTANT = SimTiming(step_us=0, prefill_us_per_token=0, decode_us_per_sequence=0)
PROMPT = list(b"The quick brown fox jumps over the lazy dog, and then it sleeps until the sun is up again.")


class VirtualTime:
    """A clock that only sleeping moves, by a little more than was asked for."""

    def __init__(self, overshoot: float = 0.0) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []
        self._overshoot = overshoot

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds + self._overshoot


def chunk(tokens: Sequence[int], *, start: int = 0, table: Sequence[int] | None = None, sample: bool = True) -> Chunk:
    blocks = range(GEOMETRY.blocks_for(start + len(tokens))) if table is None else table
    sampling = SamplingParams() if sample else None
    return Chunk(request_id=0, tokens=tokens, context_length=start, block_table=list(blocks), sampling=sampling)


def runner(timing: SimTiming = INSTANT, virtual: VirtualTime | None = None, *, seed: int = 0) -> SimRunner:
    virtual = virtual or VirtualTime()
    return SimRunner(timing=timing, geometry=GEOMETRY, seed=seed, sleep=virtual.sleep, clock=virtual.clock)


def answer(sim: SimRunner, prompt: Sequence[int], *, length: int, table: Sequence[int]) -> list[int]:
    tokens = list(prompt)
    step = chunk(prompt, table=table)
    while len(tokens) < len(prompt) + length:
        (token,) = sim.run([step])
        assert token is not None
        tokens.append(token)
        step = chunk([token], start=len(tokens) - 1, table=table)
    return tokens[len(prompt) :]


def test_a_step_takes_what_the_linear_model_says() -> None:
    timing = SimTiming(
        step_us=1000, prefill_us_per_token=10, decode_us_per_sequence=200, attention_us_per_million_pairs=1e6
    )
    prefill, decode = chunk(PROMPT[:50]), chunk(PROMPT[50:51], start=50)
    pairs = 50 * 49 / 2 + 50
    assert timing.seconds([prefill, decode]) == pytest.approx((1000 + 500 + 200 + pairs) * 1e-6)


def test_the_defaults_prefill_20k_tokens_a_second_and_decode_in_10_ms_and_a_bit_for_each_sequence() -> None:
    timing = SimTiming()
    assert timing.seconds([]) == pytest.approx(0.010)
    assert timing.seconds([chunk([1], start=0)] * 4) == pytest.approx(0.0104)
    assert timing.seconds([chunk([1] * 2000)]) - timing.seconds([]) == pytest.approx(2000 / 20_000)


def test_negative_costs_are_refused() -> None:
    with pytest.raises(ValueError, match="step_us must not be negative, got -1"):
        SimTiming(step_us=-1)


def test_sleeps_that_overshoot_are_evened_out_over_the_following_steps() -> None:
    virtual = VirtualTime(overshoot=70e-6)
    sim = runner(SimTiming(step_us=100), virtual)
    for _ in range(1000):
        sim.run([])
    assert virtual.now == pytest.approx(0.1, abs=100e-6)


def test_a_long_stall_is_not_repaid_by_a_burst() -> None:
    virtual = VirtualTime()
    sim = runner(SimTiming(step_us=10_000), virtual)
    sim.run([])
    virtual._overshoot = 30.0
    sim.run([])
    virtual._overshoot = 0.0
    before = virtual.now
    for _ in range(100):
        sim.run([])
    assert virtual.now - before == pytest.approx(1.0, abs=0.051)


def test_sums_of_real_sub_millisecond_steps_come_out_right() -> None:
    sim = SimRunner(timing=SimTiming(step_us=300), geometry=GEOMETRY)
    started = time.perf_counter()
    for _ in range(200):
        sim.run([])
    elapsed = time.perf_counter() - started
    assert elapsed >= 0.060 - 300e-6, "never early, but for the credit of the last step"


def test_a_repeated_prompt_gets_the_same_answer_wherever_it_is_stored() -> None:
    sim = runner()
    blocks = GEOMETRY.blocks_for(len(PROMPT) + 20)
    first = answer(sim, PROMPT, length=20, table=range(blocks))
    again = answer(sim, PROMPT, length=20, table=range(2 * blocks, blocks, -1))
    other = answer(sim, [*PROMPT[:-1], 0], length=20, table=range(blocks))
    assert first == again
    assert first != other
    assert len(set(first)) > 5


def test_chunks_and_cached_prefixes_do_not_change_the_answer() -> None:
    whole = runner().run([chunk(PROMPT)])
    sim = runner()
    assert sim.run([chunk(PROMPT[:31], sample=False)]) == [None]
    assert sim.run([chunk(PROMPT[31:], start=31)]) == whole
    # Another request finds the first 30 tokens cached in blocks 0..4, and computes the rest into blocks of its own.
    table = [*range(5), *range(50, 50 + GEOMETRY.blocks_for(len(PROMPT)) - 5)]
    assert sim.run([chunk(PROMPT[30:], start=30, table=table)]) == whole


def test_a_block_table_that_names_the_wrong_block_changes_the_answer() -> None:
    sim = runner()
    sim.run([chunk(PROMPT, sample=False)])
    blocks = list(range(GEOMETRY.blocks_for(len(PROMPT) + 1)))
    right = sim.run([chunk([7], start=len(PROMPT), table=blocks)])
    swapped = [*blocks[:-3], blocks[-2], blocks[-3], blocks[-1]]
    assert sim.run([chunk([7], start=len(PROMPT), table=swapped)]) != right


def test_context_that_was_never_computed_is_noticed() -> None:
    with pytest.raises(AssertionError, match="block 0 is read but was never written"):
        runner().run([chunk([1], start=12)])


def test_answers_are_printable_and_follow_the_seed() -> None:
    blocks = range(GEOMETRY.blocks_for(len(PROMPT) + 64))
    answers = [answer(runner(seed=seed), PROMPT, length=64, table=blocks) for seed in (0, 0, 1)]
    assert answers[0] == answers[1] != answers[2]
    assert bytes(answers[0]).decode().replace(" ", "a").isalpha()
