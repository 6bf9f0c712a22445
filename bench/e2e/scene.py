"""The fleet and the requests of an end-to-end run, made from a workload so that any workload strains it alike. Pure.

Requests are texts, which every router takes: each block id stands for the same letters everywhere, so equal ids are
equal tokens of the engines' byte tokenizer. Engines compute on a clock that keeps the fleet busy for ``load`` of the
time if nothing is ever found in a cache; a cache holds ``cache_share`` of what all prompts have in them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import msgspec

from bench.demo.scenario import DCP_SIZE, engine_command
from bench.workloads.request import Ask, Workload
from contract.events import Dialect
from contract.geometry import block_width
from contract.kv_events_config import KVEventsConfig

__all__ = ["MODEL", "Scene", "SceneError"]

MODEL = "sim"
_ANYWHERE = "tcp://127.0.0.1:0"
_STEP_US, _DECODE_US = 2_000.0, 50.0


class SceneError(ValueError):
    """A workload that makes no run, in one line."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The first ``requests`` of ``workload`` up to ``max_input`` tokens, told to end ``seconds`` after the first.

    Raises:
        SceneError: while it is used: no request is left.
    """

    workload: Workload
    requests: int
    seconds: float
    seed: int
    replicas: int = 8
    load: float = 0.8
    cache_share: float = 0.08
    page_size: int = 32
    max_input: int = 32_768
    max_output: int = 8

    @cached_property
    def asks(self) -> list[Ask]:
        """What is played, in the workload's own time."""
        first = islice(self.workload.asks, self.requests)
        asks = [ask for ask in first if 0 < ask.tokens <= self.max_input]
        if not asks:
            limits = f"1 to {self.max_input} tokens"
            raise SceneError(f"{self.workload.name}: no request of the first {self.requests} has {limits}")
        return asks

    @property
    def width(self) -> int:
        """Tokens of a block of these engines."""
        return block_width(page_size=self.page_size, dcp_size=DCP_SIZE)

    @cached_property
    def distinct_tokens(self) -> int:
        """Of all full blocks of the prompts, each counted once."""
        return self.workload.block_tokens * len({block for ask in self.asks for block in ask.blocks})

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts."""
        return sum(ask.tokens for ask in self.asks)

    @property
    def cache_tokens(self) -> int:
        """What one replica holds: its share, but never less than two of the longest requests."""
        return max(int(self.cache_share * self.distinct_tokens), 2 * self._context)

    @property
    def _context(self) -> int:
        """Longest prompt, its BOS and its answer, to whole blocks."""
        longest = max(ask.tokens for ask in self.asks) + 1 + self.max_output
        return longest + -longest % self.width

    @property
    def prefill_us_per_token(self) -> float:
        """The speed at which the fleet computes all prompts in ``load`` of the time."""
        return 1e6 * self.load * self.seconds * self.replicas / self.prompt_tokens

    def setting(self) -> list[str]:
        """What was chosen and assumed, a line each."""
        share, mean = self.cache_tokens / max(1, self.distinct_tokens), self.prompt_tokens / len(self.asks)
        return [
            f"{len(self.asks)} requests of {self.workload.name}, {mean:.0f} tokens each in the mean, sent as texts "
            f"within {self.seconds:g} s; answers of up to {self.max_output} tokens; seed {self.seed}",
            f"{self.replicas} sim replicas, {self.width} tokens a block, {self.prefill_us_per_token:.1f} us a prompt "
            f"token: {self.load:.0%} busy without hits; caches of {self.cache_tokens} tokens, {share:.0%} of all "
            "distinct ones each",
        ]

    def engines(self) -> list[str]:
        """Command line of the fleet, all replicas in one process."""
        events = KVEventsConfig(
            publisher="zmq", endpoint=_ANYWHERE, replay_endpoint=_ANYWHERE, bind=True, dialect=Dialect.VLLM
        )
        return engine_command(
            MODEL,
            page_size=self.page_size,
            cache_tokens=self.cache_tokens,
            replicas=self.replicas,
            context_length=self._context,
            kv_events_config=msgspec.json.encode(events).decode(),
            log_level="warning",
            sim_step_us=_STEP_US,
            sim_prefill_us_per_token=self.prefill_us_per_token,
            sim_decode_us_per_sequence=_DECODE_US,
        )

    def bodies(self) -> Iterator[tuple[float, bytes]]:
        """Requests for answers, each with the seconds after the first at which it leaves."""
        begin, span = self.asks[0].at, self.asks[-1].at - self.asks[0].at
        for index, ask in enumerate(self.asks):
            due = self.seconds * (ask.at - begin) / span if span else 0.0
            yield due, self._body(ask, index)

    def _body(self, ask: Ask, index: int) -> bytes:
        rest = ask.tokens - len(ask.blocks) * self.workload.block_tokens
        texts = [self._letters(f"block {block}", self.workload.block_tokens) for block in ask.blocks]
        return msgspec.json.encode(
            {
                "model": MODEL,
                "prompt": "".join([*texts, self._letters(f"rest {index}", rest)]),
                "max_tokens": max(1, min(ask.output_tokens, self.max_output)),
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )

    def _letters(self, name: str, count: int) -> str:
        """So many letters that stand for ``name``; a letter is a token."""
        return hashlib.shake_128(f"{self.seed} {name}".encode()).hexdigest(-(-count // 2))[:count]
