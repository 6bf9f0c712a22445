"""Which cache groups a model has: its layers' specs, uniform layers together. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable

from contract.geometry import Geometry
from engine.cache.specs import CacheGroups, FullAttentionSpec, Spec, StateSpec, UniformSpec
from engine.model.config import ModelConfig
from engine.model.hybrid_config import HybridConfig

__all__ = ["cache_groups"]


def cache_groups(model: ModelConfig | None, geometry: Geometry, *, state_interval: int | None = None) -> CacheGroups:
    """The groups of ``model`` on ranks that share tokens as ``geometry`` says; None is a model without layers.

    States are kept at multiples of ``state_interval`` tokens; None: wherever a block ends.

    Raises:
        SpecError: the interval is below 1.
    """
    full = FullAttentionSpec(geometry)
    if model is None:
        return CacheGroups([full])
    if not isinstance(model, HybridConfig):
        return CacheGroups([_uniform(range(model.num_layers), full)])
    interval = geometry.block_width if state_interval is None else state_interval
    groups: list[tuple[tuple[int, ...], Spec]] = [(model.full_layers, full), (model.linear_layers, StateSpec(interval))]
    return CacheGroups([_uniform(layers, spec) for layers, spec in groups if layers])


def _uniform(layers: Iterable[int], spec: Spec) -> UniformSpec:
    return UniformSpec({f"model.layers.{index}": spec for index in layers})
