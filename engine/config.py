"""Everything that is decided before an engine process starts. The one home of the defaults; flags are made from it.

Field names are SGLang 0.5.23's flag names, so that ``/server_info`` can answer with them as they are. A config that
exists is possible: what cannot work is refused here, in one line, as far as it shows without the model; the rest shows
when the config is fitted to it. Nothing is opened, bound or loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from contract.endpoint import MAX_PORT, EndpointError
from contract.geometry import Geometry, GeometryError
from contract.kv_events_config import KVEventsConfig
from engine.cache.specs import SLIDING_WINDOW, CacheGroups, SpecError
from engine.cache.states import StateRoom
from engine.model.catalogue import BUILT_IN, SIM, ServedModel
from engine.model.config import TINY, ModelConfig
from engine.model.groups import cache_groups
from engine.parallel.layout import Layout, LayoutError
from engine.parallel.role import NodePlan
from engine.parallel.seat import SeatError
from engine.port_plan import PortPlanError, check_ports, events_of_replica
from engine.runner.sim_runner import SimTiming

__all__ = ["ConfigError", "EngineConfig"]

_MIB = 1024 * 1024
_AT_LEAST_ONE = (
    "dp_size",
    "replicas",
    "max_total_tokens",
    "max_running_requests",
    "max_state_snapshots",
    "chunked_prefill_size",
    "max_body_bytes",
)
_MAX_LANES = 1024
"""Of one process: each has threads and a cache of its own, and all are made before the first is served."""
_MAX_BLOCKS = 2**26
"""Of one lane's cache: its books take some 40 bytes a block, whatever the model."""
_NOT_NEGATIVE = ("max_queued_requests", "shutdown_grace_seconds")


_EVENTS_HELP = 'JSON that turns KV events on, as {"publisher": "zmq", "replay_endpoint": "tcp://127.0.0.1:6557"}'


_SIM_CONTEXT = 16_384


class ConfigError(ValueError):
    """Something no engine can run with; the message names the value and the limit."""


def _option(default: Any, text: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": text, **more})


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """One engine process: ``replicas`` engines of ``dp_size`` lanes each, all alike but for their ports.

    Raises:
        ConfigError: a size out of range, sizes that do not divide, or ports that collide.
    """

    model_path: str = _option(TINY.name, f"a folder, a .gguf file, a model on the hub, or one of {', '.join(BUILT_IN)}")
    served_model_name: str | None = _option(None, "the name clients ask for; the model path where none is given")
    device: str = _option("auto", "where it runs; auto takes a GPU if there is one", choices=("auto", "cpu", "cuda"))
    dtype: str = _option(
        "auto",
        "what weights and cache are kept in; auto: float32 on a CPU, on a GPU what the model's files say",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    page_size: int = _option(16, "tokens of a block that one rank stores")
    tp_size: int = _option(1, "ranks of one engine")
    dcp_size: int = _option(1, "ranks that share the tokens of a sequence; divides tp_size")
    dcp_interleave: int = _option(1, "tokens in a row that go to one of these ranks; divides page_size")
    rank_backend: str = _option(
        "auto",
        "what ranks are; auto takes threads for built-in models, which compute less than a process costs to start",
        choices=("auto", "threads", "processes"),
    )
    rank_timeout: float = _option(120.0, "seconds that ranks wait for each other; silent ones then end the engine")
    nnodes: int = _option(1, "machines that hold the ranks of one engine, equally many each")
    node_rank: int = _option(0, "this one of them; 0 serves")
    dist_init_addr: str | None = _option(None, "HOST:PORT of node 0 at which the ranks of all machines meet")
    dp_size: int = _option(1, "engines behind one port, each with a cache of its own")
    context_length: int | None = _option(
        None, f"longest sequence in tokens, prompt and answer together; the model's own ({SIM}: {_SIM_CONTEXT})"
    )
    max_total_tokens: int = _option(65536, "tokens of sequences that one cache holds, over all ranks")
    max_state_snapshots: int = _option(
        128, "states of a hybrid model kept behind cached prefixes, for each data-parallel rank"
    )
    state_interval: int | None = _option(
        None, "they are kept at common multiples of so many tokens and the block width; wherever a block ends"
    )
    max_running_requests: int = _option(64, "requests computed at once, for each data-parallel rank")
    max_queued_requests: int = _option(1024, "requests that may wait, for each data-parallel rank; more get a 503")
    chunked_prefill_size: int = _option(2048, "prompt tokens computed in one step at most")
    random_seed: int = _option(0, "seed of sim's answers; tiny's weights have a seed of their own", aliases=("--seed",))
    sim: SimTiming = field(default_factory=SimTiming)
    host: str = _option("127.0.0.1", "address to listen on")
    port: int = _option(30000, "port to listen on; 0 lets the system choose")
    replicas: int = _option(1, "engines to serve from this process, on consecutive ports")
    kv_events_config: KVEventsConfig | None = field(default=None, metadata={"help": _EVENTS_HELP})
    max_body_bytes: int = _option(32 * _MIB, "largest request body")
    shutdown_grace_seconds: float = _option(2.0, "seconds that running requests get to end after SIGTERM")
    log_level: str = _option("info", "least severe log line", choices=("debug", "info", "warning", "error"))

    def __post_init__(self) -> None:
        try:
            width = self.geometry.block_width
            self.layout  # noqa: B018 - refuses what cannot be laid out
            self._check_numbers()
            self._check_nodes()
            check_ports(
                host=self.host,
                port=self.port,
                replicas=self.replicas,
                dp_size=self.dp_size,
                events=self.kv_events_config,
            )
        except (GeometryError, LayoutError, PortPlanError, EndpointError, SeatError) as error:
            raise ConfigError(str(error)) from None
        if self.max_total_tokens < width:
            raise ConfigError(f"max_total_tokens {self.max_total_tokens} is less than one block of {width} tokens")
        if self.total_blocks > _MAX_BLOCKS:
            raise ConfigError(
                f"max_total_tokens {self.max_total_tokens} is more than {_MAX_BLOCKS} blocks of {width} tokens"
            )

    def _check_numbers(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.replicas * self.dp_size > _MAX_LANES:
            lanes = f"replicas {self.replicas} of dp_size {self.dp_size}"
            raise ConfigError(f"{lanes} are {self.replicas * self.dp_size} caches, a process has at most {_MAX_LANES}")
        for name in _NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        for name, value in {"context_length": self.context_length, "state_interval": self.state_interval}.items():
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if not 0 <= self.port <= MAX_PORT:
            raise ConfigError(f"port must be in [0, {MAX_PORT}], got {self.port}")

    def _check_nodes(self) -> None:
        if not 0 < self.rank_timeout < float("inf"):
            raise ConfigError(f"rank_timeout must be more than 0 seconds, got {self.rank_timeout}")
        if self.nodes.nodes == 1:
            return
        self.nodes.seats(self.tp_size)
        self.check_one_engine()

    def check_one_engine(self) -> None:
        """Refuse what cannot have ranks on other machines, or under torchrun.

        Raises:
            ConfigError: several engines, or one without rank processes.
        """
        if self.dp_size > 1 or self.replicas > 1:
            raise ConfigError(
                f"ranks of several launchers make one engine, got dp_size {self.dp_size} and replicas {self.replicas}"
            )
        if self.model_path == SIM or self.rank_backend == "threads":
            raise ConfigError(
                f"ranks of several launchers are processes that compute a model, got rank_backend {self.rank_backend} "
                f"and model_path {self.model_path}"
            )

    def fitted_to(self, model: ServedModel) -> EngineConfig:
        """This config for ``model``, whose context it takes where it has none.

        Raises:
            ConfigError: the model's heads do not divide over the ranks, its context is shorter, or its cache cannot be
                laid out.
        """
        if model.source is None:
            return replace(self, context_length=self.context_length or _SIM_CONTEXT)
        shape = model.source.config
        try:
            self.layout.heads(shape, group=0)
        except LayoutError as error:
            raise ConfigError(f"{shape.name}: {error}") from None
        asked = self.context_length or shape.max_context
        if asked > shape.max_context:
            raise ConfigError(f"context_length {asked} is more than {shape.name}'s {shape.max_context}")
        fitted = replace(self, context_length=asked)
        fitted._check_cache(model, shape)
        return fitted

    def _check_cache(self, model: ServedModel, shape: ModelConfig) -> None:
        try:
            groups = self.cache_groups(model)
        except SpecError as error:
            raise ConfigError(f"{shape.name}: {error}") from None
        if any(spec.kind == SLIDING_WINDOW for spec in groups.specs):
            raise ConfigError(
                f"{shape.name}: sliding windows of {shape.window} tokens are not computed, context_length "
                f"{self.context_length} is more; up to {shape.window} they are full attention"
            )

    def cache_groups(self, model: ServedModel) -> CacheGroups:
        """What the layers of ``model`` keep of a sequence, and the home of the width that may be advertised."""
        shape = None if model.source is None else model.source.config
        return cache_groups(shape, self.geometry, longest=self.longest_sequence, state_interval=self.state_interval)

    def state_room(self, model: ServedModel) -> StateRoom | None:
        """Room for the states of ``model``; None where it has none."""
        groups = self.cache_groups(model)
        if not groups.has_states:
            return None
        return StateRoom(
            running=self.max_running_requests, snapshots=self.max_state_snapshots, interval=groups.hit_width
        )

    @property
    def longest_sequence(self) -> int:
        """``context_length``, which every config has that is fitted to a model."""
        assert self.context_length is not None, "this config is not fitted to a model yet"
        return self.context_length

    @property
    def has_rank_processes(self) -> bool:
        """Whether ranks are processes of their own, rather than threads of this one."""
        if self.rank_backend == "auto":
            return self.nnodes > 1 or (self.tp_size > 1 and self.model_path not in BUILT_IN)
        return self.rank_backend == "processes" and self.model_path != SIM

    @property
    def nodes(self) -> NodePlan:
        """The machines that hold the ranks."""
        return NodePlan(nodes=self.nnodes, node=self.node_rank, address=self.dist_init_addr)

    @property
    def geometry(self) -> Geometry:
        """How the tokens of one sequence lie on the ranks; the home of the block width."""
        return Geometry(page_size=self.page_size, dcp_size=self.dcp_size, interleave=self.dcp_interleave)

    @property
    def layout(self) -> Layout:
        """How the ranks are grouped."""
        return Layout(tp_size=self.tp_size, dcp_size=self.dcp_size)

    @property
    def model_name(self) -> str:
        """The name that clients ask for."""
        return self.served_model_name or self.model_path

    @property
    def total_blocks(self) -> int:
        """Logical blocks of one lane's cache."""
        return self.geometry.full_blocks(self.max_total_tokens)

    @property
    def sequence_limit(self) -> int:
        """Longest sequence a lane can take: the context, or its cache, which need not store an answer's last token."""
        return min(self.longest_sequence, self.total_blocks * self.geometry.block_width + 1)

    @property
    def requests_per_lane(self) -> int:
        """Requests that one lane takes, running and waiting together."""
        return self.max_running_requests + self.max_queued_requests

    def http_port(self, replica: int) -> int:
        """Where a replica listens; 0 stays 0, the system then chooses."""
        return self.port + replica if self.port else 0

    def events_config(self, replica: int) -> KVEventsConfig | None:
        """The publisher's config for rank 0 of a replica; None where events are off."""
        events = self.kv_events_config
        if events is None or not events.enabled:
            return None
        return events_of_replica(events, replica=replica, dp_size=self.dp_size)
