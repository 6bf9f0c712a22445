"""What a cache group keeps of a sequence: slots for its tokens or one state, sharded over the DCP ranks or replicated.

A group is a set of layers that store alike and so share one row of the block table. Whether DCP shards it is said by
its spec, here and nowhere else; all that follows from it (widths, row widths, where a cached prefix may end, what the
server may advertise) is asked of the specs. The rules are vLLM's (0.33.0, ``kv_cache_interface``). Knows nothing of
torch, pools or requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol, TypeVar

import msgspec

from contract.agreement import Agreement
from contract.geometry import Geometry

__all__ = [
    "FULL_ATTENTION",
    "MAMBA",
    "SLIDING_WINDOW",
    "CacheGroups",
    "FullAttentionSpec",
    "SlidingWindowSpec",
    "Spec",
    "SpecError",
    "StateSpec",
    "UniformSpec",
]

T = TypeVar("T")
FULL_ATTENTION, SLIDING_WINDOW, MAMBA = "full_attention", "sliding_window", "mamba"


class SpecError(ValueError):
    """Groups that no cache can hold together; the message is one line that names layers and numbers."""


class Spec(Protocol):
    """What all specs answer. Lengths are tokens of a sequence, whatever number of ranks shares them."""

    @property
    def kind(self) -> str:
        """vLLM's name for what is stored, as its events carry it."""
        ...

    @property
    def sharded(self) -> bool:
        """Whether each rank of a DCP group stores a part of the tokens; if not, each stores everything."""
        ...

    @property
    def block_width(self) -> int | None:
        """Tokens that one block stands for; None where nothing is stored by token."""
        ...

    @property
    def hit_width(self) -> int:
        """A cached prefix that this group can serve ends at a multiple of so many tokens."""
        ...

    def row_width(self, max_length: int) -> int:
        """Entries in the block table's row of a sequence of at most ``max_length`` tokens."""
        ...


class _PagedSpec(msgspec.Struct, frozen=True):
    """Blocks of tokens, laid out as ``geometry`` says."""

    geometry: Geometry

    @property
    def block_width(self) -> int:
        """Tokens of all ranks' pages together."""
        return self.geometry.block_width

    @property
    def hit_width(self) -> int:
        """Whole blocks only."""
        return self.block_width

    def row_width(self, max_length: int) -> int:
        """One entry a block: ``cdiv(max_length, block_width)``."""
        return self.geometry.blocks_for(max_length)


class FullAttentionSpec(_PagedSpec, frozen=True):
    """Keys and values of every token; the ranks of a DCP group share the tokens."""

    kind: ClassVar[str] = FULL_ATTENTION
    sharded: ClassVar[bool] = True


class StateSpec(msgspec.Struct, frozen=True):
    """One state for the whole sequence, as Mamba and gated linear attention keep it, the same on every rank.

    It takes no token slots and DCP does not scale it. Copies of it are kept at multiples of ``interval`` tokens.

    Raises:
        SpecError: an interval below 1.
    """

    interval: int
    kind: ClassVar[str] = MAMBA
    sharded: ClassVar[bool] = False
    block_width: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise SpecError(f"states can be kept every 1 token or more, got every {self.interval}")

    @property
    def hit_width(self) -> int:
        """A prefix can be continued only from where a state was kept."""
        return self.interval

    def row_width(self, max_length: int) -> int:
        """One entry, however long the sequence."""
        return 1


class SlidingWindowSpec(_PagedSpec, frozen=True):
    """Keys and values of the last ``window`` tokens; entries before it stay in the row, unused.

    A window cannot be shared out over ranks (as in vLLM and SGLang).

    Raises:
        SpecError: more than one rank shares the tokens.
    """

    window: int
    kind: ClassVar[str] = SLIDING_WINDOW
    sharded: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.geometry.dcp_size > 1:
            raise SpecError(
                f"sliding_window layers (window {self.window}) cannot be sharded over dcp_size "
                f"{self.geometry.dcp_size}: a window needs dcp_size 1"
            )


class UniformSpec(msgspec.Struct, frozen=True):
    """Layers, by name, that store alike though their sizes may differ. Knows nothing itself: it asks every layer.

    Raises:
        SpecError: no layer, or layers that disagree; on construction where they disagree on kind or sharding or width.
    """

    layers: Mapping[str, Spec]

    def __post_init__(self) -> None:
        if not self.layers:
            raise SpecError("a cache group needs at least 1 layer, got 0")
        for question in ("kind", "sharded", "block_width", "hit_width"):
            getattr(self, question)

    @property
    def kind(self) -> str:
        """What every layer stores."""
        return self._agreed("kind", lambda spec: spec.kind)

    @property
    def sharded(self) -> bool:
        """Whether DCP shards every layer."""
        return self._agreed("sharded", lambda spec: spec.sharded)

    @property
    def block_width(self) -> int | None:
        """Every layer's block width."""
        return self._agreed("block_width", lambda spec: spec.block_width)

    @property
    def hit_width(self) -> int:
        """Every layer's hit width."""
        return self._agreed("hit_width", lambda spec: spec.hit_width)

    def row_width(self, max_length: int) -> int:
        """Every layer's row width: an unsharded guess would make the table too wide by the factor dcp_size."""
        return self._agreed(f"row_width at {max_length} tokens", lambda spec: spec.row_width(max_length))

    def _agreed(self, question: str, ask: Callable[[Spec], T]) -> T:
        answers: dict[T, list[str]] = {}
        for name, spec in self.layers.items():
            answers.setdefault(ask(spec), []).append(name)
        if len(answers) > 1:
            listing = "; ".join(f"{answer} in {_some(names)}" for answer, names in answers.items())
            raise SpecError(f"layers of one cache group disagree on {question}: {listing}")
        return next(iter(answers))


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


class CacheGroups:
    """All groups of one model. Their blocks start together at token 0 and meet at multiples of ``hit_width``.

    Raises:
        SpecError: no group.
    """

    def __init__(self, specs: Sequence[Spec]) -> None:
        if not specs:
            raise SpecError("a cache needs at least 1 group, got 0")
        self.specs = tuple(specs)

    @property
    def hit_width(self) -> int:
        """Where a prefix may end that every group can serve: the least common multiple of the groups' own."""
        return math.lcm(*(spec.hit_width for spec in self.specs))

    @property
    def has_states(self) -> bool:
        """Whether some layers keep a state, so that a cached prefix is of use only where one was kept."""
        return any(spec.block_width is None for spec in self.specs)

    def advertised_width(self) -> Agreement:
        """The block width that events carry: the one value of all full-attention groups, or none and why."""
        widths = {n: spec.block_width for n, spec in enumerate(self.specs) if spec.kind == FULL_ATTENTION}
        if not widths:
            kinds = ", ".join(sorted({spec.kind for spec in self.specs}))
            return Agreement(
                None, f"no cache group holds full attention (there is {kinds}), so there is no block width"
            )
        if len(set(widths.values())) > 1:
            listing = ", ".join(f"group {n}: {width}" for n, width in widths.items())
            return Agreement(None, f"full-attention groups differ in block width ({listing})")
        return Agreement(next(iter(widths.values())))
