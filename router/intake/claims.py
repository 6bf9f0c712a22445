"""How often one lane holds each key, and in which tiers.

A key is nearly always held once, and then the lane's bit in ``Holders`` is all there is to keep. Aside of it stand the
rarer things: a key held more than once (in two tiers, or under two engine hashes), and keys outside the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from contract.events import Tier
from router.intake.holders import Holders

__all__ = ["Claims"]

# Plain strings: an enum member costs a look-up in Python at every use, and this is once a block.
_GPU = Tier.GPU.value
_TIER_ORDER = (Tier.CPU.value, Tier.DISK.value, Tier.EXTERNAL.value)


class Claims:
    """One lane's share of the key index: ``bit`` is its bit in the masks."""

    def __init__(self, *, bit: int, holders: Holders) -> None:
        self.bit = bit
        self._holders = holders
        self._again: dict[int, int] = {}
        self._cold: dict[str, dict[int, int]] = {}

    def add(self, keys: Sequence[int], tier: str) -> None:
        """The lane holds each of the keys once more."""
        for key in self._holders.add(keys, self.bit):
            self._again[key] = self._again.get(key, 0) + 1
        if len(keys) and tier != _GPU:
            counts = self._cold.setdefault(tier, {})
            for key in keys:
                counts[key] = counts.get(key, 0) + 1

    def remove(self, keys: Sequence[int], tier: str) -> None:
        """The lane holds each of the keys once less."""
        last = [key for key in keys if not self._took_again(key)] if self._again else keys
        self._holders.release(last, self.bit)
        if len(keys) and tier != _GPU:
            counts = self._cold[tier]
            for key in keys:
                _decrement(counts, key)
            if not counts:
                del self._cold[tier]

    def _took_again(self, key: int) -> bool:
        """One of several claims on a key is gone; False where there is only one."""
        if key not in self._again:
            return False
        _decrement(self._again, key)
        return True

    @property
    def all_on_gpu(self) -> bool:
        """Whether every key is held there."""
        return not self._cold

    def tiers(self, keys: Iterable[int], count: int) -> dict[str, int]:
        """Of ``count`` keys that the lane holds: how many have each tier as their best, fastest first."""
        if not self._cold:
            return {_GPU: count} if count else {}
        order = [tier for tier in _TIER_ORDER if tier in self._cold]
        order += sorted(self._cold.keys() - set(order))
        best: dict[str, int] = {}
        for _, key in zip(range(count), keys, strict=False):
            tier = self._best_tier(key, order)
            best[tier] = best.get(tier, 0) + 1
        return best

    def _best_tier(self, key: int, order: list[str]) -> str:
        cold = sum(counts.get(key, 0) for counts in self._cold.values())
        if cold <= self._again.get(key, 0):
            return _GPU
        return next(tier for tier in order if key in self._cold[tier])

    def check_invariants(self, expected: dict[int, list[str]]) -> None:
        """Raise AssertionError unless the lane holds exactly these keys, each once for every tier listed."""
        masks = self._holders.masks()
        assert {key for key, mask in masks.items() if mask & self.bit} == expected.keys(), "bits are not the keys held"
        again = {key: len(tiers) - 1 for key, tiers in expected.items() if len(tiers) > 1}
        assert self._again == again, "repeated keys are miscounted"
        cold: dict[str, dict[int, int]] = {}
        for key, tiers in expected.items():
            for tier in tiers:
                if tier != _GPU:
                    cold.setdefault(tier, {})[key] = tiers.count(tier)
        assert self._cold == cold, "keys outside the GPU are miscounted"


def _decrement(counts: dict[int, int], key: int) -> None:
    if counts[key] > 1:
        counts[key] -= 1
    else:
        del counts[key]
