"""Linear attention in tiles and by single tokens against the recurrence that defines it; states by slot."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.cache.state_pool import StatePool, pool_row
from engine.kernels.linear_attention import Decay, linear_decode, linear_extend
from engine.model.state_plan import PlacedMoves, plan_states
from engine.runner.base import StateMoves

CPU = torch.device("cpu")
HEADS, KEY, VALUE = 3, 5, 4


def recurrence(q: Tensor, k: Tensor, v: Tensor, state: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """In float64, token by token."""
    q, k, v, state, slopes = (each.double() for each in (q, k, v, state, slopes))
    outputs = []
    for token in range(len(q)):
        state = torch.exp(-slopes)[:, None, None] * state + torch.einsum("hk,hv->hkv", k[token], v[token])
        outputs.append(torch.einsum("hk,hkv->hv", q[token], state))
    return torch.stack(outputs).float(), state.float()


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=40)
@given(st.integers(1, 200), st.sampled_from([0.0, 1e-5, 0.1, 3.0, 50.0]), st.integers(0, 2**31))
def test_a_run_in_tiles_is_the_recurrence(tokens: int, slope: float, seed: int) -> None:
    slopes = torch.tensor([slope, slope / 2, slope / 7])
    q, k = drawn(2, tokens, HEADS, KEY, seed=seed)
    v, state = drawn(tokens, HEADS, VALUE, seed=seed + 1), drawn(HEADS, KEY, VALUE, seed=seed + 2)
    output, behind = linear_extend(q, k, v, state, decay=Decay(slopes))
    expected, expected_behind = recurrence(q, k, v, state, slopes)
    torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(behind, expected_behind, atol=1e-4, rtol=1e-4)


@given(st.integers(1, 9), st.integers(0, 2**31))
@settings(max_examples=20)
def test_single_tokens_of_many_sequences_are_runs_of_one(batch: int, seed: int) -> None:
    decay = Decay(torch.tensor([0.1, 0.0, 2.0]))
    q, k = drawn(2, batch, HEADS, KEY, seed=seed)
    v, states = drawn(batch, HEADS, VALUE, seed=seed + 1), drawn(batch, HEADS, KEY, VALUE, seed=seed + 2)
    output, behind = linear_decode(q, k, v, states, decay=decay)
    for row in range(batch):
        one = slice(row, row + 1)
        expected, expected_behind = linear_extend(q[one], k[one], v[one], states[row], decay=decay)
        torch.testing.assert_close(output[one], expected)
        torch.testing.assert_close(behind[row], expected_behind)


def test_a_slot_holds_what_was_written_to_it_and_no_slot_is_zero() -> None:
    pool = StatePool(num_layers=2, slots=3, shape=(HEADS, KEY, VALUE), device=CPU)
    states = drawn(2, HEADS, KEY, VALUE, seed=0)
    pool.write(1, torch.tensor([pool_row(2), pool_row(0)]), states)
    read = pool.read(1, torch.tensor([pool_row(None), pool_row(0), pool_row(1), pool_row(2)]))
    assert torch.equal(
        read, torch.stack([torch.zeros_like(states[0]), states[1], torch.zeros_like(states[0]), states[0]])
    )
    assert not pool.read(0, torch.tensor([pool_row(2)])).any()
    pool.write(1, torch.tensor([pool_row(2)]), torch.ones(1, HEADS, KEY, VALUE))
    assert torch.equal(read[3], states[0]), "what was read is a copy"


def test_a_plan_puts_single_tokens_before_runs_and_cuts_runs_where_states_are_saved() -> None:
    placed = [
        PlacedMoves(0, 1, StateMoves(source=None, saves=((1, 4),))),
        PlacedMoves(1, 2, StateMoves(source=6, saves=((1, 9), (1, 6)))),
        PlacedMoves(2, 12, StateMoves(source=3, saves=((4, 7), (10, 8), (10, 3)))),
    ]
    plan = plan_states(placed, device=CPU)
    assert (plan.singles, plan.sources.tolist()) == (2, [pool_row(slot) for slot in (None, 6, 3)])
    assert plan.saved_singles.tolist() == [0, 1, 1]
    assert plan.targets.tolist() == [pool_row(slot) for slot in (4, 9, 6)]
    (run,) = plan.runs
    assert (run.start, run.stop, run.source, run.cuts) == (2, 12, 2, (6, 12, 12))
    assert run.targets.tolist() == [pool_row(slot) for slot in (7, 8, 3)]


def test_single_tokens_behind_runs_are_a_fault_of_ours() -> None:
    moves = StateMoves(source=None, saves=((1, 0),))
    with pytest.raises(AssertionError, match="single tokens come first"):
        plan_states([PlacedMoves(0, 5, moves), PlacedMoves(5, 6, moves)], device=CPU)
