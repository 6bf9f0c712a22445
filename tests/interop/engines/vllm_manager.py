"""vLLM's cache manager, driven request by request: admitted, prefilled in chunks, decoded, preempted and freed.

The pool has few blocks, so that some are evicted all the time.
"""

from __future__ import annotations

import dataclasses
import random
import time
from typing import Any

from lockstep import PromptFamily
from vllm.distributed.kv_events import EventPublisherFactory, KVEventBatch
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.request import Request
from vllm_parts import MODEL_LENGTH, Groups, Requests, Truth, events_config

__all__ = ["ManagedCache"]


class ManagedCache:
    """One cache manager and its publisher."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.rng = random.Random(asked["seed"])
        groups = Groups(asked)
        self.width, self.chunk = groups.width, 2 * groups.aligned
        self.family = PromptFamily(self.rng, width=self.width)
        self.manager = KVCacheManager(
            kv_cache_config=groups.config,
            max_model_len=MODEL_LENGTH,
            scheduler_block_size=groups.aligned,
            hash_block_size=groups.unit,
            enable_kv_cache_events=True,
            dcp_world_size=asked["dcp_size"],
        )
        self.requests = Requests(asked, unit=groups.unit)
        self.truth = Truth(self.manager, self.requests, self.family)
        self.publisher = EventPublisherFactory.create(events_config(asked["topic"]))
        self.running: list[Request] = []
        self.made = 0
        self.seq = -1

    def hello(self) -> dict[str, Any]:
        """What ``/kv_event_sources`` would say, in vLLM's own words."""
        return {"kv_event_sources": {"0": dataclasses.asdict(self.publisher.get_publisher_config())}}

    def step(self) -> dict[str, Any]:
        """Admit, compute and end some requests, and publish one batch."""
        done = [self._operate() for _ in range(self.rng.choice((1, 2, 3)))]
        events = self.manager.take_events()
        if events:
            self.publisher.publish(KVEventBatch(ts=time.time(), events=events))
            self.seq += 1
        return {"seq": self.seq, "done": done, **self.truth.tell()}

    def close(self) -> None:
        self.publisher.shutdown()

    def _operate(self) -> str:
        draw = self.rng.random()
        if draw < 0.35 or not self.running:
            return self._admit()
        if draw < 0.75:
            return self._advance(self.rng.choice(self.running))
        if draw < 0.97:
            return self._free(self.rng.choice(self.running))
        return self._reset()

    def _admit(self) -> str:
        prompt = self.family.pick()
        namespace = self.family.namespace(prompt, len(self.requests.namespaces))
        self.made += 1
        request = self.requests.make(self.family.prompts[prompt], namespace, name=f"r{self.made}")
        found, hit, _ = self.manager.get_computed_blocks(request)
        chunk = min(request.num_tokens - hit, self.chunk)
        if self.manager.allocate_slots(request, chunk, hit, found) is None:
            return f"no room for prompt {prompt}"
        request.num_computed_tokens = hit + chunk
        self.running.append(request)
        return f"admit prompt {prompt} in {self.requests.namespaces[namespace]}: {hit} hit, {chunk} computed"

    def _advance(self, request: Request) -> str:
        """The next chunk of a prompt, or some steps of decoding at once; no room preempts the request."""
        if request.num_tokens == request.num_computed_tokens:
            decoded = self.rng.randint(1, self.width)
            request.append_output_token_ids([self.rng.randrange(50_000) for _ in range(decoded)])
        chunk = min(request.num_tokens - request.num_computed_tokens, self.chunk)
        self.manager.new_step_starts()
        if self.manager.allocate_slots(request, chunk) is None:
            return "preempt: " + self._free(request)
        request.num_computed_tokens += chunk
        return f"compute {chunk} tokens of {request.request_id}"

    def _free(self, request: Request) -> str:
        self.manager.free(request)
        self.running.remove(request)
        return f"free {request.request_id}"

    def _reset(self) -> str:
        """A reset is refused while a request holds blocks."""
        if self.rng.random() < 0.5:
            while self.running:
                self._free(self.running[-1])
        return f"reset: {self.manager.reset_prefix_cache()}"
