"""What both ways of driving vLLM share: cache groups, requests with their hashes, and the truth about a manager."""

from __future__ import annotations

import math
import os
from typing import Any

os.environ["VLLM_HOST_IP"] = "127.0.0.1"  # where "tcp://*:0" binds

import torch
from lockstep import PromptFamily
from vllm.config import KVEventsConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    get_block_hash,
    get_group_id,
    get_request_block_hasher,
    init_none_hash,
    maybe_convert_block_hash,
    resolve_dcp_kv_block_size,
)
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

__all__ = ["MODEL_LENGTH", "Groups", "Requests", "Truth", "events_config"]

MODEL_LENGTH = 2048
HEAD = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}


def specs_of(kind: str, block_size: int) -> list[KVCacheSpec]:
    specs: list[KVCacheSpec] = [FullAttentionSpec(block_size=block_size, **HEAD)]
    if kind == "swa":
        specs.append(SlidingWindowSpec(block_size=block_size, sliding_window=2 * block_size, **HEAD))
    if kind == "mamba":
        state = {"shapes": ((8,),), "dtypes": (torch.float32,)}
        specs.append(MambaSpec(block_size=2 * block_size, mamba_cache_mode="align", **state))
    return specs


class Groups:
    """The cache groups of a model: ``width`` of a full-attention block, what chunks align to, what a hash covers."""

    def __init__(self, asked: dict[str, Any]) -> None:
        specs = specs_of(asked["kind"], asked["block_size"])
        widths = [resolve_dcp_kv_block_size(spec, asked["dcp_size"]) for spec in specs]
        self.width, self.aligned, self.unit = widths[0], math.lcm(*widths), math.gcd(*widths)
        self.config = KVCacheConfig(
            num_blocks=asked["blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec([f"layer{number}"], spec) for number, spec in enumerate(specs)],
        )


class Requests:
    """Makes requests for prompts. ``namespaces`` are pairs of LoRA name and cache salt."""

    def __init__(self, asked: dict[str, Any], *, unit: int) -> None:
        self.namespaces = [tuple(namespace) for namespace in asked["namespaces"]]
        hash_function = get_hash_fn_by_name(asked["hash"])
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(unit, hash_function)

    def make(self, tokens: list[int], namespace: int, *, name: str, decode: int = 1000) -> Request:
        adapter, salt = self.namespaces[namespace]
        return Request(
            request_id=name,
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=decode, ignore_eos=True),
            pooling_params=None,
            lora_request=LoRARequest(adapter, 1, f"/{adapter}") if adapter else None,
            cache_salt=salt,
            block_hasher=self._hasher,
        )


class Truth:
    """What a manager's block pool finds by hash, group by group and in how many copies; and what a prompt would hit."""

    def __init__(self, manager: KVCacheManager, requests: Requests, family: PromptFamily) -> None:
        self._manager, self._requests, self._family = manager, requests, family
        self._told = 0

    def tell(self) -> dict[str, Any]:
        prompts = self._family.prompts
        new, self._told = prompts[self._told :], len(prompts)
        return {"prompts": new, "blocks": self._blocks(), "cached": self._cached()}

    def _blocks(self) -> list[list[Any]]:
        rows = []
        for key, found in self._manager.block_pool.cached_block_hash_to_block._cache.items():
            name = maybe_convert_block_hash(get_block_hash(key))
            copies = len(found) if isinstance(found, dict) else 1
            rows.append([name.hex() if isinstance(name, bytes) else str(name), get_group_id(key), copies])
        return rows

    def _cached(self) -> list[list[int]]:
        """Asked of the manager itself, as if a new request came for each prompt."""
        rows = []
        for prompt, tokens in enumerate(self._family.prompts):
            for namespace in range(len(self._requests.namespaces)):
                probe = self._requests.make(tokens, namespace, name="probe")
                rows.append([prompt, namespace, self._manager.get_computed_blocks(probe)[1]])
        return rows


def events_config(topic: str) -> KVEventsConfig:
    """Events on ports that the system chooses."""
    wildcard = "tcp://*:0"
    return KVEventsConfig(
        enable_kv_cache_events=True, publisher="zmq", endpoint=wildcard, replay_endpoint=wildcard, topic=topic
    )
