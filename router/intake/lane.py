"""What one lane holds, as far as its events tell: blocks by tier and group, their copies, and the key of each.

Follows the engine's truth first: every block announced is held until every copy of it is removed. Beside that it finds
the key of each block, which is what prompts match by; a block whose key cannot be known is held all the same.

Copies are counted, because engines keep duplicates: vLLM never shares a block between two requests that computed it at
once, and SGLang's tenants publish equal hashes. Two kinds of store repeat a block without a second copy behind it:

* SGLang outside the GPU (``CPU_PINNED``, ``DISK``, ``EXTERNAL``): one copy whatever is announced, as in its write-back.
* vLLM's full report (``kv_cache_report_mode=full``) repeats what a request hit. Nothing on the wire marks it. A store
  counts as such a report if it carries a session, starts at token 0, names nothing new, and the lane has one cache
  group: there a real duplicate from token 0 needs a prompt of exactly one block, or a request that may not read the
  cache. On vLLM 0.33.0's recording this gives the engine's own count. A report without a session counts as copies.

Knows nothing of streams, sequence numbers or other lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from contract.events import BlockHash, BlockRemoved, BlockStored, Tier, tier_of
from contract.hashing import pack_tokens
from router.intake.claims import Claims
from router.intake.content import block_tokens, content_of, store_keys
from router.intake.departed import Departed
from router.intake.first_blocks import FirstBlocks
from router.intake.groups import Groups
from router.intake.holders import Holders
from router.intake.lane_report import BlockRow, LaneLimits, LaneStats
from router.intake.orphans import Orphan, Orphans
from router.intake.pool import Pool
from router.intake.width import LaneWidth

__all__ = ["LaneBlocks"]

_MOST_PLACES = 64
_SINGLE_COPY_MEDIA = frozenset({"CPU_PINNED", "DISK", "EXTERNAL"})


class LaneBlocks:
    """One lane's blocks. Every method leaves the invariants of ``check_invariants`` intact, errors included."""

    def __init__(self, *, bit: int, holders: Holders, advertised_width: int | None, limits: LaneLimits) -> None:
        self.claims = Claims(bit=bit, holders=holders)
        self.width = LaneWidth(advertised_width)
        self.first_blocks = FirstBlocks()
        self._limits = limits
        self._groups = Groups()
        self._pools: dict[tuple[str, int | None], Pool] = {}
        self._places: dict[tuple[str | None, int | None], Pool] = {}
        self._orphans = Orphans(limits.orphans)
        self._departed = Departed(limits.departed)
        self._unknown_removals = 0
        self._rejected_events = 0
        self._last_rejection: str | None = None
        self._unusable: dict[str, int] = {}

    def store(self, event: BlockStored) -> None:
        """Hold the blocks of a store, with their keys where those can be known.

        Raises:
            TokenIdError: an id is negative or above 2**64-1; none of the blocks is held then.
        """
        if self._groups.learn(event):
            self._regroup()
        pool = self._places.get((event.medium, event.group_idx))
        if pool is None:
            pool = self._place_for(event)
        counted = self._counts_copies(pool, event)
        if not pool.decides:
            self._hold_unkeyed(pool, event, counted=counted, why="foreign_group")
        elif not event.dense:
            self._hold_unkeyed(pool, event, counted=counted, why="sparse" if event.token_ids else "placeholder")
        elif not self._width_admits(pool, event):
            self._hold_unkeyed(pool, event, counted=counted, why="other_width")
        else:
            self._store_chain(pool, event, counted=counted)

    def remove(self, event: BlockRemoved) -> None:
        """Drop one copy of each block, in the tier named or in every tier; what is not held is counted."""
        dropped = [False] * len(event.block_hashes)
        for pool in self._named_by(event):
            for place in self._drop(pool, event.block_hashes):
                dropped[place] = True
        self._unknown_removals += dropped.count(False)

    def clear(self) -> None:
        """Drop everything held and remembered; the same engine goes on, so its counts and groups stay."""
        for pool in self._pools.values():
            self.claims.remove(pool.keyed.all_keys(), pool.tier)
        self._pools.clear()
        self._places.clear()
        self._orphans.clear()
        self._departed.clear()
        self.width.unsettle()

    def forget(self) -> None:
        """Drop everything, and what was learnt of the engine too: another one may stand behind the stream now."""
        self.clear()
        self.width.forget()
        self.first_blocks.clear()
        self._groups.clear()

    def reject(self, reason: str) -> None:
        """Count an event that could not be used at all."""
        self._rejected_events += 1
        self._last_rejection = reason

    def rows(self) -> list[BlockRow]:
        """Every block held, with its copies, in no order."""
        return [
            BlockRow(name, pool.tier, pool.group, pool.copies(name)) for pool in self._pools.values() for name in pool
        ]

    def stats(self) -> LaneStats:
        """Sizes and counts now."""
        blocks: dict[str, int] = {}
        for pool in self._pools.values():
            if len(pool):
                blocks[pool.tier] = blocks.get(pool.tier, 0) + len(pool)
        return LaneStats(
            blocks=blocks,
            advertised_width=self.width.advertised,
            emitted_width=self.width.emitted,
            widths_seen=tuple(self.width.seen),
            pairs=self.width.pairs,
            orphans=len(self._orphans),
            orphans_dropped=self._orphans.dropped,
            unkeyed=sum(len(pool.loose) for pool in self._pools.values()),
            unknown_removals=self._unknown_removals,
            rejected_events=self._rejected_events,
            last_rejection=self._last_rejection,
            unusable=dict(self._unusable),
        )

    @property
    def gpu_blocks(self) -> int:
        """Blocks held on the GPU that a prompt can be found in."""
        return sum(len(pool) for pool in self._pools.values() if pool.decides and pool.tier == Tier.GPU)

    # Stores

    def _store_chain(self, pool: Pool, event: BlockStored, *, counted: bool) -> None:
        content = content_of(event)
        if content is None:
            self._hold_unkeyed(pool, event, counted=counted, why="extra_keys")
            return
        above = event.parent_block_hash
        parent = content.root if above is None else self._key_of(above)
        if parent is None:
            self._park(pool, event, content.extras, counted=counted)
            return
        keys = self._known_keys(event.block_hashes) or store_keys(event, parent=parent, extras=content.extras)
        self._place(pool, event.block_hashes, keys, counted=counted)
        if above is None and len(keys):
            self.first_blocks.note(keys[0], block_tokens(event, 0), pairs=event.pairs)

    def _known_keys(self, names: Sequence[BlockHash]) -> Sequence[int] | None:
        """The keys of blocks that are all known already, which saves hashing a copy or another tier's announcement."""
        if not names or self._key_of(names[0]) is None:
            return None
        keys = [key for key in map(self._key_of, names) if key is not None]
        return keys if len(keys) == len(names) else None

    def _place(self, pool: Pool, names: Sequence[BlockHash], keys: Sequence[int], *, counted: bool) -> None:
        held = pool.hold(names, keys)
        if counted:
            for place in held:
                pool.add_copy(names[place])
        self.claims.add(_without(keys, held) if held else keys, pool.tier)
        if self._anything_waits():
            for name, key in zip(names, keys, strict=True):
                self._settle(name, key)

    def _anything_waits(self) -> bool:
        """Whether some block is held without a key that it could be given."""
        for pool in self._pools.values():  # noqa: SIM110 - a generator costs more than this, and it is once a store
            if pool.decides and pool.unkeyed:
                return True
        return False

    def _settle(self, name: BlockHash, key: int) -> None:
        """A block's key has become known: give it to every tier that holds the block, and place what waited for it."""
        self._orphans.forget(name)
        for found, its_key in [(name, key), *self._orphans.adopt(name, key)]:
            self._give_key(found, its_key)

    def _give_key(self, name: BlockHash, key: int) -> None:
        for pool in self._pools.values():
            if name in pool.loose:
                pool.give_key(name, key)
                self.claims.add([key], pool.tier)

    def _park(self, pool: Pool, event: BlockStored, extras: Sequence[object] | None, *, counted: bool) -> None:
        """Hold a store whose parent is unknown: each block waits for the one before it, unless its key is known."""
        pack_tokens(event.token_ids)  # raises before anything is changed
        above, parent = event.parent_block_hash, None
        for block, name in enumerate(event.block_hashes):
            assert above is not None, "a store without a parent has a root key"
            orphan = Orphan(above, block_tokens(event, block), None if extras is None else extras[block])
            key = self._key_of(name)
            if key is None and parent is not None:
                key = orphan.key(parent)
            if key is None:
                self._orphans.park(name, orphan)
                self._hold(pool, [name], counted=counted)
            else:
                self._place(pool, [name], [key], counted=counted)
            above, parent = name, key

    def _hold_unkeyed(self, pool: Pool, event: BlockStored, *, counted: bool, why: str) -> None:
        self._unusable[why] = self._unusable.get(why, 0) + 1
        self._hold(pool, event.block_hashes, counted=counted)

    def _hold(self, pool: Pool, names: Iterable[BlockHash], *, counted: bool) -> None:
        """Hold blocks whose tokens are no help; in a deciding pool each takes the key that its hash is known by."""
        for name in names:
            if name in pool:
                if counted:
                    pool.add_copy(name)
                continue
            key = self._key_of(name) if pool.decides else None
            if key is None:
                pool.unkeyed.add(name)
            else:
                pool.keyed.set(name, key)
                self.claims.add([key], pool.tier)

    def _counts_copies(self, pool: Pool, event: BlockStored) -> bool:
        if event.medium in _SINGLE_COPY_MEDIA:
            return False
        return event.session_id is None or not self._full_report(pool, event)

    def _full_report(self, pool: Pool, event: BlockStored) -> bool:
        if event.group_idx is None or event.parent_block_hash is not None or len(self._groups.numbers) > 1:
            return False
        return all(name in pool for name in event.block_hashes)

    def _width_admits(self, pool: Pool, event: BlockStored) -> bool:
        return self.width.agrees(event) or self.width.admits(
            event, news=any(name not in pool for name in event.block_hashes)
        )

    # Removals

    def _named_by(self, event: BlockRemoved) -> list[Pool]:
        tier = tier_of(event.medium)
        in_tier = [pool for pool in self._pools.values() if tier is None or pool.tier == tier]
        exact = [pool for pool in in_tier if pool.group == event.group_idx]
        return exact if exact or event.group_idx is not None else in_tier

    def _drop(self, pool: Pool, names: Sequence[BlockHash]) -> set[int]:
        """Drop one copy of each block; the places of those of which there was one."""
        dropped = {place for place, name in enumerate(names) if pool.drop_copy(name)} if pool.extra else set()
        last = [name for place, name in enumerate(names) if place not in dropped] if dropped else names
        places = [place for place in range(len(names)) if place not in dropped]
        keys = []
        for place, name, key in zip(places, last, pool.keyed.take(last), strict=True):
            if key is not None:
                keys.append(key)
                self._departed.remember(name, key)
            elif name in pool.unkeyed:
                pool.unkeyed.discard(name)
                self._forget_orphan(name)
            else:
                continue
            dropped.add(place)
        self.claims.remove(keys, pool.tier)
        return dropped

    def _forget_orphan(self, name: BlockHash) -> None:
        """A block waits for its parent only while some tier holds it."""
        if not any(name in pool.loose for pool in self._pools.values()):
            self._orphans.forget(name)

    # Pools and keys

    def _place_for(self, event: BlockStored) -> Pool:
        """The pool that a store goes to, remembered by the words of the event."""
        tier, group = str(tier_of(event.medium) or Tier.GPU), event.group_idx
        pool = self._pools.get((tier, group))
        if pool is None:
            pool = self._pools[tier, group] = Pool(tier=tier, group=group, decides=self._groups.decides(group))
        if len(self._places) < _MOST_PLACES:
            self._places[event.medium, group] = pool
        return pool

    def _key_of(self, name: BlockHash) -> int | None:
        for pool in self._pools.values():
            key = pool.keyed.get(name)
            if key is not None:
                return key
        return self._departed.get(name)

    def _regroup(self) -> None:
        """A group's kind has just been named: pools made before it may decide now, or no longer."""
        for pool in self._pools.values():
            decides = self._groups.decides(pool.group)
            if pool.decides and not decides:
                self._demote(pool)
            elif decides and not pool.decides:
                self._promote(pool)

    def _demote(self, pool: Pool) -> None:
        loose, names = set(pool.unkeyed), list(pool.keyed.names())
        self.claims.remove(pool.keyed.all_keys(), pool.tier)
        pool.keyed.clear()
        pool.unkeyed.update(names)
        pool.decides = False
        for name in loose:
            self._forget_orphan(name)

    def _promote(self, pool: Pool) -> None:
        names = list(pool)
        pool.unkeyed.clear()
        pool.decides = True
        self._hold(pool, names, counted=False)

    def check_invariants(self) -> None:
        """Raise AssertionError unless all parts agree with each other."""
        held: dict[int, list[str]] = {}
        for pool in self._pools.values():
            pool.check_invariants()
            for key in pool.keyed.all_keys():
                held.setdefault(key, []).append(pool.tier)
        self.claims.check_invariants(held)
        self._orphans.check_invariants()
        loose = {name for pool in self._pools.values() for name in pool.loose}
        assert all(name in loose for name in self._orphans), "an orphan that no pool holds"
        assert len(self._departed) <= 2 * self._limits.departed, "more departed blocks than the bound"


def _without(keys: Sequence[int], places: Iterable[int]) -> list[int]:
    left_out = set(places)
    return [key for place, key in enumerate(keys) if place not in left_out]
