"""Made-up traffic, where no recording is at hand: conversations that grow turn by turn behind shared system prompts.

The system prompts' popularity follows Zipf's law; lengths of turns and answers are drawn from log-normal distributions
and pauses from exponential ones, as recorded chats roughly are. One seed makes one workload.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import accumulate, islice
from random import Random
from typing import Annotated

import msgspec

from bench.workloads.blocks import MAX_ID
from bench.workloads.request import Ask
from bench.workloads.tempo import Turn, timed

__all__ = ["SHAPES", "Shape", "generate"]

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is made up. Tokens are medians, ``spread`` is the sigma of their logarithms; times are means in seconds."""

    requests: _Count = 10_000
    block_tokens: _Count = 64
    roots: _Count = 100
    root_tokens: _Count = 2_048
    popularity: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    """Zipf's exponent: the second most popular root is asked for ``2 ** -popularity`` as often as the first."""

    turns: _Count = 5
    turn_tokens: _Count = 400
    answer_tokens: _Count = 200
    spread: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    pause: _Positive = 30.0
    session_gap: _Positive = 1.0


CODING = Shape(
    requests=5_000,
    block_tokens=512,
    roots=8,
    root_tokens=20_480,
    turns=30,
    turn_tokens=1_500,
    answer_tokens=500,
    pause=15.0,
    session_gap=20.0,
)
"""Coding agents: few kinds of long tool definitions, and sessions that grow to half a million tokens."""

SHAPES: Mapping[str, Shape] = {"coding": CODING}


def generate(shape: Shape, *, seed: int) -> Iterator[Ask]:
    """``shape.requests`` requests by time; open conversations are all that is held."""
    asks = timed(_sessions(shape, Random(seed)), mean_gap=shape.session_gap, seed=seed)
    return islice(asks, shape.requests)


def _sessions(shape: Shape, random: Random) -> Iterator[list[Turn]]:
    """Conversations without end; ids of the roots come first, then each conversation's own, counted on and on."""
    root_blocks = shape.root_tokens // shape.block_tokens
    weights = list(accumulate((rank + 1) ** -shape.popularity for rank in range(shape.roots)))
    first_own = unused = shape.roots * root_blocks
    while True:
        (root,) = random.choices(range(shape.roots), cum_weights=weights)
        lengths = [_lengths(shape, random) for _ in range(_geometric(shape.turns, random))]
        own_blocks = sum(map(sum, lengths)) // shape.block_tokens
        if unused + own_blocks > MAX_ID:
            unused = first_own
        blocks = (*range(root * root_blocks, (root + 1) * root_blocks), *range(unused, unused + own_blocks))
        unused += own_blocks
        yield list(_turns(shape, random, blocks, root_blocks * shape.block_tokens, lengths))


def _turns(
    shape: Shape, random: Random, blocks: tuple[int, ...], root_tokens: int, lengths: list[tuple[int, int]]
) -> Iterator[Turn]:
    tokens = root_tokens
    for turn, (asked, answered) in enumerate(lengths):
        tokens += asked
        pause = random.expovariate(1.0 / shape.pause) if turn else 0.0
        yield Turn(pause, blocks[: tokens // shape.block_tokens], tokens, answered)
        tokens += answered


def _lengths(shape: Shape, random: Random) -> tuple[int, int]:
    """Tokens of a turn and of its answer."""
    asked = random.lognormvariate(math.log(shape.turn_tokens), shape.spread)
    return 1 + int(asked), 1 + int(random.lognormvariate(math.log(shape.answer_tokens), shape.spread))


def _geometric(mean: int, random: Random) -> int:
    """At least 1."""
    return 1 if mean == 1 else 1 + int(math.log(1.0 - random.random()) / math.log(1.0 - 1.0 / mean))
