"""The index of a router without events: what was sent is held, until it is old, crowded out, or was refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contract.hashing import block_keys
from router.choice.affinity import KEEP_SECONDS as SESSION_SECONDS
from router.choice.affinity import MAX_SESSIONS, Affinity
from router.choice.heat import HALF_LIFE, MAX_PREFIXES, PrefixHeat
from router.choice.memory import mark_step
from router.choice.routed import KEEP_SECONDS, MAX_KEYS, RoutedPrompts

WIDTH = 6
STEP = mark_step(WIDTH) * WIDTH


def keys(tokens: range | list[int], width: int = WIDTH) -> list[int]:
    return block_keys(list(tokens), width=width)


def test_what_was_sent_is_held_until_its_time_is_up_and_use_prolongs_it() -> None:
    memory = RoutedPrompts()
    memory.remember(keys(range(600)), width=WIDTH, now=0.0).prefilled(now=1.0)
    memory.remember(keys(range(300)), width=WIDTH, now=100.0)
    assert memory.match(keys(range(600)), width=WIDTH, now=KEEP_SECONDS - 1) == 600 // STEP * STEP
    assert memory.match(keys(range(600)), width=WIDTH, now=KEEP_SECONDS + 1) == 300 // STEP * STEP
    assert memory.match(keys(range(600)), width=WIDTH, now=KEEP_SECONDS + 101) == 0


def test_a_refused_prompt_takes_back_what_only_it_has_brought() -> None:
    """L9."""
    memory = RoutedPrompts()
    memory.remember(keys(range(300)), width=WIDTH, now=0.0)
    memory.remember(keys(range(600)), width=WIDTH, now=0.0).forget()
    assert memory.match(keys(range(600)), width=WIDTH, now=0.0) == 300 // STEP * STEP


def test_a_prompt_that_somebody_else_has_sent_too_survives_a_refusal() -> None:
    memory = RoutedPrompts()
    refused = memory.remember(keys(range(300)), width=WIDTH, now=0.0)
    memory.remember(keys(range(300)), width=WIDTH, now=0.0)
    refused.forget()
    assert memory.match(keys(range(300)), width=WIDTH, now=0.0) == 300 // STEP * STEP


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8)), max_size=30))
def test_a_match_is_what_a_walk_from_the_beginning_finds(sent: list[tuple[int, int]]) -> None:
    memory, width = RoutedPrompts(), 64
    held: set[tuple[int, ...]] = set()
    for now, (branch, blocks) in enumerate(sent):
        tokens = [branch] * (blocks * width)
        memory.remember(keys(tokens, width), width=width, now=float(now))
        held |= {(branch, depth) for depth in range(1, blocks + 1)}
    for branch in range(4):
        deepest = max((depth for other, depth in held if other == branch), default=0)
        assert memory.match(keys([branch] * (9 * width), width), width=width, now=30.0) == deepest * width


def test_memory_is_bounded_and_the_longest_unused_goes_first() -> None:
    memory, width = RoutedPrompts(), 64
    memory.remember([-1, -2], width=width, now=0.0)
    for number in range(MAX_KEYS // 64):
        memory.remember(range(64 * number, 64 * (number + 1)), width=width, now=0.0)
    assert len(memory) == MAX_KEYS
    assert memory.match([-1, -2], width=width, now=0.0) == 0
    assert memory.match(range(64), width=width, now=0.0) == 64 * width
    memory.clear()
    assert len(memory) == 0


def test_the_heat_of_a_prefix_fades_and_is_bounded() -> None:
    heat = PrefixHeat()
    for _ in range(8):
        heat.add(1, now=0.0)
    assert (heat.of(1, now=0.0), heat.of(1, now=HALF_LIFE), heat.of(2, now=0.0)) == (8.0, 4.0, 0.0)
    for key in range(2, MAX_PREFIXES + 10):
        heat.add(key, now=0.0)
    assert len(heat) == MAX_PREFIXES
    assert heat.of(1, now=0.0) == 0.0


def test_sessions_are_remembered_within_bounds_of_number_and_time() -> None:
    affinity = Affinity(seconds=0.1)
    affinity.settle("s", url="http://a", dp_rank=1, now=0.0)
    assert affinity.place("s", now=SESSION_SECONDS - 1) == ("http://a", 1)
    assert affinity.place("s", now=SESSION_SECONDS) is None
    for number in range(MAX_SESSIONS):
        affinity.settle(str(number), url="http://b", dp_rank=0, now=0.0)
    assert len(affinity) == MAX_SESSIONS
    assert affinity.place("s", now=0.0) is None
