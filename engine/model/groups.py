"""Which cache groups a model has: its layers' specs, uniform layers together. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from contract.geometry import Geometry
from engine.cache.specs import CacheGroups, FullAttentionSpec, SlidingWindowSpec, Spec, StateSpec, UniformSpec
from engine.model.config import ModelConfig
from engine.model.hybrid_config import HybridConfig

__all__ = ["cache_groups"]


def cache_groups(
    model: ModelConfig | None, geometry: Geometry, *, longest: int, state_interval: int | None = None
) -> CacheGroups:
    """The groups of ``model`` on ranks that share tokens as ``geometry`` says; None is a model without layers.

    No sequence has more than ``longest`` tokens: a window as wide as that is none. States are kept at multiples of
    ``state_interval`` tokens; None: wherever a block ends.

    Raises:
        SpecError: windows under DCP, or an interval below 1.
    """
    if model is None:
        return CacheGroups([FullAttentionSpec(geometry)])
    states = model.linear_layers if isinstance(model, HybridConfig) else ()
    windowed = _windowed(model, longest=longest, states=states)
    full = [index for index in range(model.num_layers) if index not in windowed and index not in states]
    groups: list[UniformSpec] = []
    if full:
        groups.append(_uniform(full, FullAttentionSpec(geometry)))
    if windowed and model.window is not None:
        groups.append(_uniform(windowed, SlidingWindowSpec(geometry, model.window)))
    if states:
        interval = geometry.block_width if state_interval is None else state_interval
        groups.append(_uniform(states, StateSpec(interval)))
    return CacheGroups(groups)


def _windowed(model: ModelConfig, *, longest: int, states: Collection[int]) -> list[int]:
    if model.window is None or model.window >= longest:
        return []
    return [index for index in model.windowed_layers if index not in states]


def _uniform(layers: Iterable[int], spec: Spec) -> UniformSpec:
    return UniformSpec({f"model.layers.{index}": spec for index in layers})
