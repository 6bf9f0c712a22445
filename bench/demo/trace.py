"""The demo on real traffic: the start of a Mooncake trace, sped up, on replicas whose forward pass is a clock."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import msgspec

from bench.demo.scenario import DCP_SIZE, EngineProcess, engine_command
from bench.play import TraceTempo, play_trace
from bench.tally import Ask
from contract.geometry import block_width
from engine.runner.sim_runner import SimTiming
from router.trace.lines import TraceError
from router.trace.mooncake import BLOCK_TOKENS, TraceRow, read_trace

__all__ = ["TraceScenario"]

MODEL = "sim"


class _Excerpt(msgspec.Struct, frozen=True):
    """The rows that are played, and how many were left out: too long, and behind the first rows."""

    rows: list[TraceRow]
    too_long: int
    behind: int


@dataclass(frozen=True, kw_only=True)
class TraceScenario:
    """The first rows of a trace on ``sim``; a replica's cache holds ``cache_share`` of all distinct prompt tokens."""

    trace: Path
    first_rows: int = 1000
    replicas: int = 4
    speedup: float = 12.0
    max_input: int = 131_072
    max_output: int = 8
    seed: int = 0
    concurrency: int = 256
    cache_share: float = 0.15
    page_size: int = 64

    @cached_property
    def _excerpt(self) -> _Excerpt:
        rest = read_trace(self.trace)
        first = list(islice(rest, self.first_rows))
        rows = [row for row in first if row.input_length <= self.max_input]
        if not rows:
            raise TraceError(f"{self.trace}: no row of the first {self.first_rows} has up to {self.max_input} tokens")
        return _Excerpt(rows, too_long=len(first) - len(rows), behind=sum(1 for _ in rest))

    @property
    def rows(self) -> list[TraceRow]:
        """The rows that are played.

        Raises:
            TraceError: none is left, or the trace cannot be read.
        """
        return self._excerpt.rows

    @property
    def width(self) -> int:
        """Tokens a block."""
        return block_width(page_size=self.page_size, dcp_size=DCP_SIZE)

    @property
    def requests(self) -> int:
        """Rows that are played."""
        return len(self.rows)

    @cached_property
    def working_set(self) -> int:
        """Tokens of all distinct blocks of the rows."""
        return BLOCK_TOKENS * len({hash_id for row in self.rows for hash_id in row.hash_ids})

    @property
    def context_length(self) -> int:
        """Longest prompt and answer, to whole blocks."""
        longest = max(row.input_length for row in self.rows) + self.max_output
        return longest + self.width - longest % self.width

    @property
    def cache_tokens(self) -> int:
        """What one replica's cache holds: its share, but never less than two of the longest requests."""
        return max(int(self.cache_share * self.working_set), 2 * self.context_length)

    @property
    def timing(self) -> SimTiming:
        """The clock of ``sim`` as it comes, sped up like the trace."""
        usual = msgspec.structs.asdict(SimTiming())
        return SimTiming(**{name: cost / self.speedup for name, cost in usual.items()})

    def setting(self) -> list[str]:
        """Fleet, excerpt, cache, clock, and what was cut."""
        left_out, usual, speedup = self._excerpt, SimTiming(), self.speedup
        cut = sum(row.output_length > self.max_output for row in self.rows)
        return [
            f"fleet: {self.replicas} sim replicas, dcp {DCP_SIZE}, page size {self.page_size}: {self.width} tokens a "
            f"block; seed {self.seed}",
            f"trace: {self.trace.name}, {self.requests} requests of its first {self.seconds:.0f} s, {speedup:g} times "
            "as fast",
            f"cut: {left_out.too_long} prompts above {self.max_input} tokens skipped, {left_out.behind} later requests "
            f"not played, {cut} answers ended at {self.max_output} tokens",
            f"cache: {self.cache_tokens} tokens a replica, {self.cache_tokens / self.working_set:.0%} of the "
            f"{self.working_set} distinct ones in all prompts",
            f"clock: {usual.prefill_us_per_token:g} us a prompt token and {usual.step_us / 1000:g} ms a step, both "
            f"divided by {speedup:g}; TTFTs are as measured: multiply by {speedup:g} for the trace's time",
        ]

    @property
    def seconds(self) -> float:
        """From the first row to the last, in the trace's time."""
        return (self.rows[-1].timestamp - self.rows[0].timestamp) / 1000

    def engines(self) -> list[EngineProcess]:
        """One process for all replicas."""
        clock = {f"sim_{name}": cost for name, cost in msgspec.structs.asdict(self.timing).items()}
        command = engine_command(
            MODEL,
            page_size=self.page_size,
            cache_tokens=self.cache_tokens,
            context_length=self.context_length,
            replicas=self.replicas,
            **clock,
        )
        return [EngineProcess(name="replicas", command=command, replicas=self.replicas)]

    async def play(self, ask: Ask) -> None:
        """Play the rows at their times."""
        tempo = TraceTempo(
            speedup=self.speedup, max_output=self.max_output, concurrency=self.concurrency, seed=self.seed
        )
        await play_trace(self.rows, ask, model=MODEL, tempo=tempo)
