"""Which runner an engine has, made from its config; and the same plan for ranks that other launchers start.

Imports torch only where this process computes.
"""

from __future__ import annotations

import importlib.util

from engine.config import EngineConfig
from engine.model.catalogue import ServedModel
from engine.parallel.seat import Cluster
from engine.parallel.world import RankFailedError
from engine.runner.base import Runner
from engine.runner.process_runner import ProcessRunner
from engine.runner.rank_plan import RankPlan
from engine.runner.sim_runner import SimRunner

__all__ = ["StartError", "rank_plan", "start_runner"]


class StartError(RuntimeError):
    """Something that the flags ask for is not there; one line."""


def rank_plan(config: EngineConfig, model: ServedModel) -> RankPlan:
    """What each rank builds of a model that has weights."""
    assert model.source is not None, f"{model.path} has no weights"
    room = config.state_room(model)
    return RankPlan(
        source=model.source,
        layout=config.layout,
        geometry=config.geometry,
        num_blocks=config.total_blocks,
        device=config.device,
        dtype=config.dtype,
        state_slots=0 if room is None else room.slots,
    )


def start_runner(config: EngineConfig, model: ServedModel, *, cluster: Cluster | None = None) -> Runner:
    """The runner of one lane, its ranks built; ``cluster`` says which of them are elsewhere.

    Raises:
        StartError: torch, a device or a rank is not to be had.
    """
    if model.source is None:
        return SimRunner(timing=config.sim, geometry=config.geometry, seed=config.random_seed)
    try:
        if config.has_rank_processes or cluster is not None:
            return _process_runner(config, model, cluster)
        return _thread_runner(config, model)
    except ModuleNotFoundError as error:
        raise StartError(
            f"--model-path {config.model_path} needs {error.name}: pip install 'kvsteer[engine]'"
        ) from None
    except (RankFailedError, OSError) as error:
        raise StartError(str(error)) from None


def _process_runner(config: EngineConfig, model: ServedModel, cluster: Cluster | None) -> ProcessRunner:
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("no torch", name="torch")
    return ProcessRunner(rank_plan(config, model), timeout=config.rank_timeout, cluster=cluster)


def _thread_runner(config: EngineConfig, model: ServedModel) -> Runner:
    from engine.parallel.device import DeviceError, resolve_device
    from engine.runner.torch_runner import TorchRunner

    plan = rank_plan(config, model)
    try:
        device = resolve_device(config.device)
    except DeviceError as error:
        raise StartError(str(error)) from None
    return TorchRunner(
        source=plan.source,
        layout=plan.layout,
        geometry=plan.geometry,
        num_blocks=plan.num_blocks,
        device=device,
        dtype=plan.dtype,
        state_slots=plan.state_slots,
        timeout=config.rank_timeout,
    )
