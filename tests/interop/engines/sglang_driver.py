"""Drives SGLang's radix trees and its publisher, without a GPU. Runs in SGLang's own environment.

``tree`` is ``radix`` (the Python tree) or ``unified`` (the default tree of 0.5.23, its core in Rust). The allocator
only counts what comes back. DCP reaches the tree as the width of its pages alone, as it does in the engine.

The truth told after each step: how much of every prompt ever used the tree holds, in tokens, by namespace, and how much
it holds in all. Every path of the tree is part of such a prompt, so together they are all of its content.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import random
import sys
import time
import types
from array import array
from typing import Any

from lockstep import PromptFamily, serve
from transformers.utils.import_utils import is_torchvision_available


class _Nothing(type):
    """The type of names that nobody calls here."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Hollow(types.ModuleType):
    """A module in which every name exists and does nothing."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Nothing(name, (), {})
        setattr(self, name, made)
        return made


class _GpuPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for the packages that SGLang imports at once and needs on a GPU only."""

    names = ("torchvision", "sgl_kernel")

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Hollow(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


is_torchvision_available()  # transformers remembers that there is none, before SGLang is told that there is
sys.meta_path.insert(0, _GpuPackages())

import torch  # noqa: E402
from sglang.srt.disaggregation.kv_events import EventPublisherFactory, KVEventBatch  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey  # noqa: E402
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402
from sglang.srt.runtime_context import describe_kv_events_publisher  # noqa: E402

TREES = {"radix": RadixCache, "unified": UnifiedRadixCache}


class Slots:
    """The token slots a tree gives back."""

    device = torch.device("cpu")

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.freed = 0

    def free(self, slots: torch.Tensor) -> None:
        self.freed += len(slots)

    def free_segment(self, slots: torch.Tensor, *, start_pos: int) -> None:
        self.freed += len(slots)

    def free_segments(self, segments: Any) -> None:
        self.freed += sum(len(slots) for slots, _ in segments)


class SglangEngine:
    """One tree and its publisher. ``namespaces`` are pairs of extra key and cache salt."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.rng = random.Random(asked["seed"])
        self.page_size, self.dcp_size = asked["page_size"], asked["dcp_size"]
        self.width = self.page_size * self.dcp_size
        self.namespaces = [tuple(namespace) for namespace in asked["namespaces"]]
        self.family = PromptFamily(self.rng, width=self.width)
        self.used: list[tuple[int, int]] = []
        self.locks: list[Any] = []
        self.told = 0
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=Slots(self.width),
            page_size=self.width,
            is_eagle=asked["pairs"],
            enable_kv_cache_events=True,
            tree_components=(ComponentType.FULL,),
        )
        for extra_key, adapter in asked["adapters"].items():
            request = types.SimpleNamespace(extra_key=extra_key, lora_id=adapter)
            params.kv_event_lora_names.register(request, adapter)
        self.tree = TREES[asked["tree"]](params)
        self.config = {
            "publisher": "zmq",
            "endpoint": "tcp://127.0.0.1:*",
            "bind": True,
            "replay_endpoint": "tcp://127.0.0.1:*",
            "topic": asked["topic"],
        }
        self.publisher = EventPublisherFactory.create(json.dumps(self.config))
        self.seq = -1

    def hello(self) -> dict[str, Any]:
        """What ``/server_info`` would say, in SGLang's own words."""
        source = self.publisher.describe_local_source(self.width)
        config = self.config | {"endpoint": source["endpoint"], "replay_endpoint": source["replay_endpoint"]}
        arguments = types.SimpleNamespace(
            kv_events_config=json.dumps(config),
            page_size=self.page_size,
            dcp_size=self.dcp_size,
            dp_size=1,
            attn_dp_size=1,
            load_publish_endpoint=None,
        )
        return {"server_info": {"kv_events": describe_kv_events_publisher(arguments)}}

    def step(self) -> dict[str, Any]:
        """A few operations and one batch, as a scheduler's step is."""
        done = [self._operate() for _ in range(self.rng.choice((1, 1, 2, 4)))]
        events = self.tree.take_events()
        if events:
            self.publisher.publish(KVEventBatch(ts=time.time(), events=events))
            self.seq += 1
        new, self.told = self.family.prompts[self.told :], len(self.family.prompts)
        return {"seq": self.seq, "done": done, "prompts": new, "cached": self._cached(), "tokens": self._size()}

    def close(self) -> None:
        self.publisher.shutdown()

    def _operate(self) -> str:
        draw = self.rng.random()
        if draw < 0.55:
            return self._insert()
        if draw < 0.7:
            return self._lock()
        if draw < 0.8 and self.locks:
            return self._unlock()
        if draw < 0.97:
            return self._evict()
        return self._reset()

    def _key(self, prompt: int, namespace: int) -> RadixKey:
        extra_key, salt = self.namespaces[namespace]
        return RadixKey(array("q", self.family.prompts[prompt]), extra_key=extra_key, cache_salt=salt)

    def _insert(self) -> str:
        prompt = self.family.pick()
        namespace = self.family.namespace(prompt, len(self.namespaces))
        if (prompt, namespace) not in self.used:
            self.used.append((prompt, namespace))
        slots = torch.arange(len(self.family.prompts[prompt]))
        self.tree.insert(InsertParams(key=self._key(prompt, namespace), value=slots))
        return f"insert prompt {prompt} in {self.namespaces[namespace]}"

    def _match(self, prompt: int, namespace: int) -> Any:
        return self.tree.match_prefix(MatchPrefixParams(key=self._key(prompt, namespace)))

    def _lock(self) -> str:
        """A running request holds what it matched, so that it is not evicted."""
        if not self.used:
            return "nothing to lock"
        prompt, namespace = self.rng.choice(self.used)
        match = self._match(prompt, namespace)
        if match.device_prefix_len:
            self.locks.append(self.tree.lock(match.last_device_node))
        return f"lock {match.device_prefix_len} tokens of prompt {prompt} in {self.namespaces[namespace]}"

    def _unlock(self) -> str:
        self.tree.unlock(self.locks.pop(self.rng.randrange(len(self.locks))))
        return "unlock"

    def _evict(self) -> str:
        tokens = self.rng.randint(1, 8 * self.width)
        evicted = self.tree.evict(EvictParams(num_tokens=tokens)).num_tokens_evicted
        return f"evict {tokens} tokens: {evicted}"

    def _reset(self) -> str:
        """A flush, which needs an idle engine."""
        while self.locks:
            self._unlock()
        self.tree.reset()
        return "reset"

    def _cached(self) -> list[list[int]]:
        return [[*used, int(self._match(*used).device_prefix_len)] for used in self.used]

    def _size(self) -> int:
        size = self.tree.total_size()
        return size[0] if isinstance(size, tuple) else size


if __name__ == "__main__":
    serve(SglangEngine)
