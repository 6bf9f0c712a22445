"""vLLM's whole scheduler with the publisher it makes for itself; only the model's answers are made up.

What is admitted, in which chunks, who is preempted and when events leave is all vLLM's own doing.
"""

from __future__ import annotations

import dataclasses
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from lockstep import PromptFamily
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm_parts import MODEL_LENGTH, Groups, Requests, Truth, events_config

__all__ = ["ScheduledEngine"]

VOCABULARY = 50_000
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": MODEL_LENGTH,
}


class ScheduledEngine:
    """One scheduler. A step is one of its steps, with what clients did before it."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.rng = random.Random(asked["seed"])
        groups = Groups(asked)
        self.family = PromptFamily(self.rng, width=groups.width)
        self.requests = Requests(asked, unit=groups.unit)
        config = vllm_config(asked, budget=3 * groups.aligned)
        self.scheduler = Scheduler(
            config,
            groups.config,
            StructuredOutputManager(config),
            block_size=groups.aligned,
            hash_block_size=groups.unit,
        )
        self.truth = Truth(self.scheduler.kv_cache_manager, self.requests, self.family)
        self.made = 0
        self.seq = -1
        self._publish = self.scheduler.kv_event_publisher.publish
        self.scheduler.kv_event_publisher.publish = self._counted

    def _counted(self, batch: Any) -> None:
        self._publish(batch)
        self.seq += 1

    def hello(self) -> dict[str, Any]:
        """What ``/kv_event_sources`` would say, in vLLM's own words."""
        return {"kv_event_sources": {"0": dataclasses.asdict(self.scheduler.get_kv_event_publisher_config())}}

    def step(self) -> dict[str, Any]:
        done = [self._client() for _ in range(self.rng.choice((0, 1, 2)))]
        output = self.scheduler.schedule()
        self.scheduler.update_from_output(output, self._answer(output))
        done.append(f"scheduled {output.num_scheduled_tokens}")
        return {"seq": self.seq, "done": done, **self.truth.tell()}

    def close(self) -> None:
        self.scheduler.shutdown()

    def _client(self) -> str:
        draw = self.rng.random()
        if draw < 0.75:
            return self._ask()
        if draw < 0.95:
            return self._leave()
        everything = self.rng.random() < 0.5
        return f"reset, all requests: {everything}: {self.scheduler.reset_prefix_cache(everything)}"

    def _ask(self) -> str:
        prompt = self.family.pick()
        namespace = self.family.namespace(prompt, len(self.requests.namespaces))
        self.made += 1
        tokens, decode = self.family.prompts[prompt], self.rng.randint(1, 40)
        self.scheduler.add_request(self.requests.make(tokens, namespace, name=f"r{self.made}", decode=decode))
        return f"ask for prompt {prompt} in {self.requests.namespaces[namespace]}, {decode} tokens"

    def _leave(self) -> str:
        if not self.scheduler.requests:
            return "nobody to leave"
        name = self.rng.choice(sorted(self.scheduler.requests))
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        return f"leave {name}"

    def _answer(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """A made-up token for each request whose prompt is computed by this step."""
        names = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=[self._sampled(name) for name in names],
        )

    def _sampled(self, name: str) -> list[int]:
        request = self.scheduler.requests[name]
        whole = request.num_computed_tokens >= request.num_tokens
        return [self.rng.randrange(VOCABULARY)] if whole else []


def vllm_config(asked: dict[str, Any], *, budget: int) -> VllmConfig:
    """The configuration of a one-layer model that is never loaded."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        model = ModelConfig(
            model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=MODEL_LENGTH
        )
        config = VllmConfig(
            model_config=model,
            cache_config=CacheConfig(block_size=asked["block_size"], enable_prefix_caching=True),
            scheduler_config=SchedulerConfig(
                max_num_batched_tokens=budget,
                max_num_seqs=4,
                max_model_len=MODEL_LENGTH,
                is_encoder_decoder=False,
                async_scheduling=False,
            ),
            kv_events_config=events_config(asked["topic"]),
            device_config=DeviceConfig("cpu"),
        )
    # Ranks are validated against GPUs that are not here; the scheduler only multiplies by the number.
    config.parallel_config.decode_context_parallel_size = asked["dcp_size"]
    config.cache_config.num_gpu_blocks = asked["blocks"]
    return config
