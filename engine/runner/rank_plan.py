"""What a rank is to build: values only, so that they can be handed to another process, which imports torch there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from contract.geometry import Geometry
from engine.model.source import ModelSource
from engine.parallel.layout import Layout

if TYPE_CHECKING:
    from engine.parallel.group import Group
    from engine.parallel.rank_process import Work

__all__ = ["RankPlan"]


class RankPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A model, laid out over ranks that have ``num_blocks`` logical blocks of cache each.

    They also have ``state_slots`` slots of states each, where the model has states.
    ``device`` and ``dtype`` go by torch's names; without a number, ``cuda`` is the GPU that the rank was given, and
    ``auto`` is the dtype that suits device and model.
    """

    source: ModelSource
    layout: Layout
    geometry: Geometry
    num_blocks: int
    device: str
    dtype: str = "auto"
    state_slots: int = 0

    def __post_init__(self) -> None:
        assert self.layout.dcp_size == self.geometry.dcp_size, (
            f"layout and geometry disagree: dcp_size {self.layout.dcp_size} and {self.geometry.dcp_size}"
        )

    def check(self) -> None:
        """Refuse a model that cannot be laid out, before any rank starts.

        Raises:
            LayoutError: its heads do not divide over the ranks.
        """
        for group in range(self.layout.num_groups):
            self.layout.heads(self.source.config, group=group)

    def __call__(self, group: Group) -> Work:
        """Build the rank in a process of its own: what it does with the bytes of a step."""
        from engine.runner.torch_rank import WiredRank

        return WiredRank(self, group)
