"""One simulated replica: the real prefix cache under a prefill server of one prompt at a time, then decodes beside it.

A block of the workload is a token of the cache, whose blocks are one token wide. A prompt is looked up when its prefill
begins; what it uses stays pinned until its answer ends. What is evicted for it is announced at once, as engines do
behind the first of a prompt's steps, and what is computed when the prefill ends. Answers take room of their own
nowhere: a later prompt brings their tokens.
"""

from __future__ import annotations

from array import array
from collections import deque
from functools import partial
from typing import Protocol

from bench.fleet.clock import VirtualClock
from bench.fleet.feed import Feed
from bench.workloads.request import Ask
from contract.events import Event
from contract.geometry import Geometry
from engine.cache.block_table import BlockTable
from engine.cache.prefix_cache import PrefixCache
from engine.request import Namespace
from router.choice.load import EngineLoad

__all__ = ["Client", "SimEngine", "findable", "new_cache"]

SHARED = Namespace()


class Client(Protocol):
    """Who asked, and wants to know."""

    ask: Ask

    def first_token(self, *, cached_blocks: int) -> None:
        """The prompt is computed; so many of its blocks were found."""
        ...

    def ended(self) -> None:
        """The answer is complete."""
        ...

    def lost(self) -> None:
        """The engine is gone, and the request with it."""
        ...


def new_cache(blocks: int) -> PrefixCache:
    """A cache whose blocks hold one block of the workload each."""
    return PrefixCache(geometry=Geometry(page_size=1, dcp_size=1), total_blocks=blocks)


def findable(ask: Ask, block_tokens: int) -> int:
    """Blocks of a prompt that a cache may serve: a prompt's last token is always computed, so its block is too."""
    return min(len(ask.blocks), (ask.tokens - 1) // block_tokens)


class _Job:
    """A request here; ``table`` is set while it runs."""

    __slots__ = ("cached", "client", "path", "table")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.path = array("Q", client.ask.blocks)
        self.table: BlockTable | None = None
        self.cached = 0


class SimEngine:
    """``seconds_per_token`` of prefill; an output token takes as long as ``decode_cost`` of them."""

    def __init__(
        self,
        clock: VirtualClock,
        *,
        blocks: int,
        block_tokens: int,
        seconds_per_token: float,
        decode_cost: float,
        log_batches: int,
    ) -> None:
        self.feed = Feed(clock, log_batches=log_batches, held=self._held)
        self._clock = clock
        self._blocks = blocks
        self._block_tokens = block_tokens
        self._pace = seconds_per_token
        self._decode_pace = seconds_per_token * decode_cost
        self._start()

    def _start(self) -> None:
        self.cache = new_cache(self._blocks)
        self._waiting: deque[_Job] = deque()
        self._prefilling: _Job | None = None
        self._decoding: dict[_Job, None] = {}

    def submit(self, client: Client) -> None:
        """Take a request; the client hears of it once it is computed."""
        self._waiting.append(_Job(client))
        self._go_on()

    def account(self) -> EngineLoad:
        """What it says of its load when asked; what waits may yet be found in the cache."""
        prefilling = [] if self._prefilling is None else [self._prefilling]
        pending = sum(job.client.ask.tokens for job in self._waiting) + sum(map(self._uncached, prefilling))
        used = self._blocks - self.cache.available_blocks
        return EngineLoad(
            running=len(prefilling) + len(self._decoding),
            waiting=len(self._waiting),
            waiting_tokens=pending,
            cache_used=used / self._blocks,
        )

    def stop(self) -> None:
        """Lose everything; clients are told once nobody is here any more."""
        running = [self._prefilling] if self._prefilling is not None else []
        jobs = [*self._decoding, *running, *self._waiting]
        self.feed.up = False
        self._start()
        for job in jobs:
            job.client.lost()

    def start_again(self) -> None:
        """Another process stands here now, with an empty cache."""
        self.feed.up = True
        self.feed.restart()

    def _go_on(self) -> None:
        """Begin the next prefill, if nothing is computed now and there is room for it."""
        if self._prefilling is not None or not self._waiting or not self._admit(self._waiting[0]):
            return
        job = self._prefilling = self._waiting.popleft()
        self._clock.after(self._uncached(job) * self._pace, partial(self._prefilled, job))

    def _admit(self, job: _Job) -> bool:
        """Pin what is held of a prompt and make room for the rest; of a prompt that fits no cache, for what fits."""
        cache = self.cache
        table = cache.open(job.path[: findable(job.client.ask, self._block_tokens)], SHARED)
        if not cache.grow(table, length=min(len(job.path), self._blocks)):
            cache.close(table, job.path, length=table.shared)
            return False
        job.table, job.cached = table, table.held_tokens
        self._publish()
        return True

    def _uncached(self, job: _Job) -> int:
        return job.client.ask.tokens - job.cached * self._block_tokens

    def _prefilled(self, job: _Job) -> None:
        if job is not self._prefilling:
            return  # another process stands here now
        assert job.table is not None, "a prompt is computed that was never admitted"
        self._prefilling = None
        self._decoding[job] = None
        self.cache.share(job.table, job.path, length=len(job.table.blocks))
        self._publish()
        job.client.first_token(cached_blocks=job.cached)
        self._clock.after(job.client.ask.output_tokens * self._decode_pace, partial(self._ended, job))
        self._go_on()

    def _ended(self, job: _Job) -> None:
        if job not in self._decoding:
            return
        assert job.table is not None
        del self._decoding[job]
        self.cache.close(job.table, job.path, length=len(job.table.blocks))
        job.client.ended()
        self._go_on()

    def _publish(self) -> None:
        events = self.cache.take_events()
        if events:
            self.feed.publish(events)

    def _held(self) -> list[Event]:
        self._publish()
        return self.cache.held_events()

    def check_invariants(self) -> None:
        """Assert that every block is free, cached, or of a request that is here."""
        running = [*self._decoding] + ([] if self._prefilling is None else [self._prefilling])
        self.cache.check_invariants([job.table for job in running if job.table is not None])
