"""Which cache groups of a lane decide about prefix matches.

A hybrid model keeps one KV cache group for each kind of layer and announces each block once per group, under one hash.
Only a group with full attention says that a prefix is there; a sliding window or a Mamba state is something else. vLLM
names the kinds since 0.22; SGLang has one group and names nothing.
"""

from __future__ import annotations

from contract.events import BlockStored

__all__ = ["Groups"]

_FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
_NO_KIND = (None, "unknown")


class Groups:
    """Kinds of the groups seen so far on one lane."""

    def __init__(self) -> None:
        self._decides: dict[int | None, bool] = {}
        self.numbers: set[int | None] = set()

    def learn(self, event: BlockStored) -> bool:
        """Note the group of a store; True where this changes what is known of the groups."""
        group, kind = event.group_idx, event.kv_cache_spec_kind
        self.numbers.add(group)
        if kind in _NO_KIND:
            return False
        decides = kind in _FULL_ATTENTION
        changed = self._decides.get(group) is not decides
        self._decides[group] = decides
        return changed

    def decides(self, group: int | None) -> bool:
        """Whether blocks of a group count as cached prefix.

        A group of no known kind does while the stream names no kinds at all; a store of no group always does (a
        connector's, which describes full attention only).
        """
        return self._decides.get(group, group is None or not self._decides)

    def clear(self) -> None:
        """Forget all kinds: another engine may stand behind the stream now."""
        self._decides.clear()
        self.numbers.clear()
