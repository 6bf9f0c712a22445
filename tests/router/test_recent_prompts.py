"""The memory of what was just sent: siblings find it, time and failures end it, bounds hold."""

from __future__ import annotations

from contract.hashing import block_keys
from router.choice.memory import mark_step
from router.choice.recent import CONFIRM_SECONDS, MAX_KEYS, MAX_KEYS_OF_ONE, MAX_PROMPTS, PENDING_SECONDS, RecentPrompts

WIDTH = 6


def keys(tokens: range | list[int], width: int = WIDTH) -> list[int]:
    return block_keys(list(tokens), width=width)


def test_a_sibling_matches_what_it_shares_with_a_prompt_just_sent() -> None:
    memory, step = RecentPrompts(), mark_step(WIDTH) * WIDTH
    memory.remember(keys(range(600)), width=WIDTH, now=0.0)
    sibling = keys([*range(300), *range(700, 1000)])
    assert memory.match(sibling, width=WIDTH, now=0.1) == 300 // step * step > 200
    assert memory.match(keys(range(500, 600)), width=WIDTH, now=0.1) == 0


def test_what_nobody_confirms_expires() -> None:
    memory = RecentPrompts()
    memory.remember(keys(range(200)), width=WIDTH, now=0.0)
    assert memory.match(keys(range(200)), width=WIDTH, now=PENDING_SECONDS - 0.1) > 0
    assert memory.match(keys(range(200)), width=WIDTH, now=PENDING_SECONDS) == 0


def test_a_first_token_leaves_only_the_time_events_need() -> None:
    memory = RecentPrompts()
    sent = memory.remember(keys(range(200)), width=WIDTH, now=0.0)
    sent.prefilled(now=3.0)
    assert memory.match(keys(range(200)), width=WIDTH, now=3.0 + CONFIRM_SECONDS / 2) > 0
    assert memory.match(keys(range(200)), width=WIDTH, now=3.0 + CONFIRM_SECONDS) == 0


def test_a_request_that_was_refused_leaves_nothing() -> None:
    """L9."""
    memory = RecentPrompts()
    memory.remember(keys(range(200)), width=WIDTH, now=0.0).forget()
    assert memory.match(keys(range(200)), width=WIDTH, now=0.1) == 0


def test_memory_is_bounded_in_prompts_and_in_keys() -> None:
    memory = RecentPrompts()
    for number in range(3 * MAX_PROMPTS):
        memory.remember(keys(range(number, number + 80)), width=WIDTH, now=0.0)
    assert len(memory) <= MAX_PROMPTS
    for start in range(20):
        sent = memory.remember(range(start * 10_000, (start + 1) * 10_000), width=64, now=0.0)
        assert len(sent.keys) == MAX_KEYS_OF_ONE
    assert len(memory._by_key) <= MAX_KEYS
    memory.clear()
    assert len(memory) == 0


def test_a_shorter_sibling_that_is_done_does_not_hide_the_longer_one_under_way() -> None:
    """What the shorter one shares is known by its events; the rest of the longer one is looked for beyond that."""
    memory = RecentPrompts()
    memory.remember(keys(range(600)), width=WIDTH, now=0.0)
    memory.remember(keys(range(300)), width=WIDTH, now=0.0).prefilled(now=0.0)
    later = 2 * CONFIRM_SECONDS
    assert memory.match(keys(range(600)), width=WIDTH, now=later, known=300) > 500
    assert memory.match(keys(range(600)), width=WIDTH, now=later, known=600) == 0


def test_a_narrow_width_is_remembered_as_far_as_a_wide_one() -> None:
    for width in (1, 3, 6, 16, 64):
        memory = RecentPrompts()
        memory.remember(keys(range(6000), width), width=width, now=0.0)
        assert memory.match(keys(range(6000), width), width=width, now=0.0) >= 5900, width
