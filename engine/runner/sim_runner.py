"""A forward pass that is a clock: it takes as long as a linear model says, and answers from a seeded function.

Everything around it is real, so it stands in for a model where many replicas shall fit on two cores. Its cache holds
the token ids themselves: the next token is a function of the last tokens *as read back through the block table*, so
that a repeated prompt gets the same answer however it was chunked or cached, and a wrong block table a different one.
Knows nothing of torch.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence

import msgspec
from xxhash import xxh3_64_intdigest

from contract.geometry import Geometry
from engine.runner.base import Chunk

__all__ = ["SimRunner", "SimTiming"]

_MEMORY = 64
"""Last tokens of a sequence that the next one depends on."""
_LETTERS = b"abcdefghijklmnopqrstuvwxyz      "
_UNWRITTEN = -1
_LONGEST_CREDIT_S = 0.05
"""Lateness carried to the next step at most: sleeps that overshoot are evened out, a stall of the machine is not."""


class SimTiming(msgspec.Struct, frozen=True, kw_only=True):
    """What a step costs, in microseconds. The defaults resemble a mid-size model on one data-centre GPU.

    A step takes ``step_us``, plus ``prefill_us_per_token`` for each token of a prefill chunk, plus
    ``decode_us_per_sequence`` for each sequence that computes one token, plus ``attention_us_per_million_pairs`` for
    each million pairs of a new token and a token before it (0: attention is free). The defaults prefill 20,000 tokens/s
    besides the step's own 10 ms.

    Raises:
        ValueError: a negative cost.
    """

    step_us: float = 10_000.0
    prefill_us_per_token: float = 50.0
    decode_us_per_sequence: float = 100.0
    attention_us_per_million_pairs: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

    def seconds(self, chunks: Sequence[Chunk]) -> float:
        """How long one step over ``chunks`` takes."""
        return (self.step_us + sum(map(self._chunk_us, chunks))) * 1e-6

    def _chunk_us(self, chunk: Chunk) -> float:
        tokens = len(chunk.tokens)
        linear = self.decode_us_per_sequence if tokens == 1 else self.prefill_us_per_token * tokens
        pairs = tokens * chunk.context_length + tokens * (tokens - 1) / 2
        return linear + self.attention_us_per_million_pairs * pairs * 1e-6


class SimRunner:
    """A `Runner` that computes nothing. Answers are lower-case letters and spaces, and never end by themselves."""

    def __init__(
        self,
        *,
        timing: SimTiming,
        geometry: Geometry,
        seed: int = 0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._timing = timing
        self._cache = _TokenCache(geometry)
        self._seed = seed
        self._sleep = sleep
        self._clock = clock
        self._late = 0.0

    def run(self, chunks: Sequence[Chunk]) -> list[int | None]:
        """Next tokens, after the time the step takes; the time spent here is part of it, not on top of it."""
        started = self._clock()
        for chunk in chunks:
            self._cache.write(chunk)
        tokens = [self._next_token(chunk) if chunk.sampling else None for chunk in chunks]
        self._wait_until(started + self._timing.seconds(chunks))
        return tokens

    def close(self) -> None:
        """Nothing is held."""

    def _next_token(self, chunk: Chunk) -> int:
        position = chunk.context_length + len(chunk.tokens)
        memory = self._cache.read(chunk.block_table, range(max(0, position - _MEMORY), position))
        digest = xxh3_64_intdigest(memory.tobytes() + position.to_bytes(8, "little"), seed=self._seed)
        return _LETTERS[digest % len(_LETTERS)]

    def _wait_until(self, deadline: float) -> None:
        """Sleep, and remember by how much too long, so that sums of short steps come out right."""
        deadline -= self._late
        remaining = deadline - self._clock()
        if remaining > 0:
            self._sleep(remaining)
        self._late = min(max(self._clock() - deadline, 0.0), _LONGEST_CREDIT_S)


class _TokenCache:
    """The token ids of every block written so far, by block id; bounded by the ids there are."""

    def __init__(self, geometry: Geometry) -> None:
        self._width = geometry.block_width
        self._blocks: dict[int, array[int]] = {}

    def write(self, chunk: Chunk) -> None:
        """Store a chunk's tokens where its block table says."""
        tokens = array("q", chunk.tokens)
        taken = 0
        for block, start, stop in self._spans(
            chunk.block_table, range(chunk.context_length, chunk.context_length + len(tokens))
        ):
            if block not in self._blocks:
                self._blocks[block] = array("q", [_UNWRITTEN]) * self._width
            self._blocks[block][start:stop] = tokens[taken : taken + stop - start]
            taken += stop - start

    def read(self, block_table: Sequence[int], positions: range) -> array[int]:
        """Token ids at ``positions``."""
        tokens = array("q")
        for block, start, stop in self._spans(block_table, positions):
            assert block in self._blocks, f"block {block} is read but was never written"
            tokens += self._blocks[block][start:stop]
        assert _UNWRITTEN not in tokens, f"positions {positions.start}..{positions.stop - 1} are not all in the cache"
        return tokens

    def _spans(self, block_table: Sequence[int], positions: range) -> Iterator[tuple[int, int, int]]:
        """The block ids that hold ``positions``, with the part ``[start, stop)`` of each that does."""
        width = self._width
        position = positions.start
        while position < positions.stop:
            column, start = divmod(position, width)
            stop = min(width, start + positions.stop - position)
            yield block_table[column], start, stop
            position += stop - start
