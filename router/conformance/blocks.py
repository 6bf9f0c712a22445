"""Holds one life's events to the rules about blocks: widths, tokens, parents, order, identity, removals.

What a removal may name is decided by the router's own index, fed with the same events: it counts copies, tiers and
groups as routing needs them. Only groups with full attention are held to the rules about tokens and parents: the others
of a hybrid model announce blocks sparsely, and so do engines that do not yet name their groups' kinds.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from xxhash import xxh3_64_intdigest

from contract.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event, EventBatch, Rejected
from contract.hashing import TokenIdError, pack_tokens
from router.conformance.rules import Ledger, Rule
from router.intake.groups import Groups
from router.intake.index import BlockIndex

__all__ = ["BlockJudge"]

_Named = tuple[int | None, BlockHash]


class BlockJudge:
    """Takes the batches of one life in order; ``finish`` once. Remembers ``most_blocks`` blocks, then starts afresh."""

    def __init__(self, ledger: Ledger, *, complete: bool, most_blocks: int = 1_000_000) -> None:
        """``complete``: the history begins with an empty cache. Else what came before it may explain anything."""
        self._ledger = ledger
        self._complete = complete
        self._most_blocks = most_blocks
        self._index = BlockIndex()
        self._handle = self._index.add_lane()
        self._groups = Groups()
        self._contents: dict[_Named, int] = {}
        self._announced: set[BlockHash] = set()
        self._awaited: dict[BlockHash, str] = {}
        self._unknown_removals = 0
        self._widths: tuple[int, ...] = ()

    @property
    def width(self) -> int | None:
        """Tokens per block, as the last store says."""
        return self._index.stats(self._handle).emitted_width

    def take(self, seq: int, batch: EventBatch) -> None:
        """Judge the events of a batch, and remember them."""
        for place, event in enumerate(batch.events):
            self._event(event, f"batch {seq}, event {place}")
        if len(self._contents) > self._most_blocks:
            self._forget(complete=False)

    def skipped(self) -> None:
        """Batches are missing here: what they said may explain what comes next."""
        self._complete = False

    def finish(self) -> None:
        """The history has ended: parents that nobody announced are missing for good."""
        for parent, where in self._awaited.items():
            self._ledger.broken(Rule.PARENTS, f"{where}: parent {_text(parent)} was never announced")
        self._awaited.clear()

    def _forget(self, *, complete: bool) -> None:
        self.finish()
        self._contents.clear()
        self._announced.clear()
        self._complete = complete
        self._apply(AllBlocksCleared())

    def _apply(self, event: Event) -> None:
        self._index.apply(self._handle, EventBatch(ts=0.0, events=[event]))

    def _event(self, event: Event | Rejected, where: str) -> None:
        if isinstance(event, Rejected):
            self._ledger.broken(Rule.EVENTS, f"{where}: {event.reason}")
            self._complete = False
            return
        self._ledger.held(Rule.EVENTS)
        match event:
            case BlockStored():
                self._store(event, where)
            case BlockRemoved():
                self._remove(event, where)
            case AllBlocksCleared():
                self._forget(complete=True)

    # Stores

    def _store(self, event: BlockStored, where: str) -> None:
        self._groups.learn(event)
        named = event.kv_cache_spec_kind is not None or len(self._groups.numbers) == 1
        if named and self._groups.decides(event.group_idx):
            self._judge_store(event, where)
        self._apply(event)
        for name in event.block_hashes:
            awaited = self._awaited.pop(name, None)
            if awaited is not None:
                self._ledger.broken(Rule.ORDER, f"{awaited}: parent {_text(name)} was announced later, in {where}")
        self._announced.update(event.block_hashes)

    def _judge_store(self, event: BlockStored, where: str) -> None:
        if self._is_partial(event):
            return
        placeholder = not event.token_ids and event.medium not in (None, "GPU")
        if placeholder:
            return
        self._judge_tokens(event, where)
        self._judge_parent(event, where)
        if event.dense:
            self._judge_identity(event, where)
            self._judge_width(event, where)

    def _is_partial(self, event: BlockStored) -> bool:
        """One unit of a block that is not full yet, as vLLM's hybrid models announce: its parent may be unknown."""
        width = self.width
        return (
            width is not None
            and len(event.block_hashes) == 1
            and 0 < event.block_size < width
            and width % event.block_size == 0
            and event.kv_cache_spec_kind is not None
        )

    def _judge_tokens(self, event: BlockStored, where: str) -> None:
        found, due = len(event.token_ids), len(event.block_hashes) * event.units_per_block
        self._ledger.check(
            Rule.TOKENS,
            event.dense,
            lambda: (
                f"{where}: {found} ids for {len(event.block_hashes)} hashes at block_size {event.block_size}, not {due}"
            ),
        )

    def _judge_width(self, event: BlockStored, where: str) -> None:
        first = self._widths[0] if self._widths else event.block_size
        if event.block_size not in self._widths:
            self._widths = (*self._widths, event.block_size)[:16]
        self._ledger.check(
            Rule.WIDTH,
            event.block_size == first,
            lambda: f"{where}: block_size {event.block_size}, and {first} before",
        )

    def _judge_parent(self, event: BlockStored, where: str) -> None:
        parent = event.parent_block_hash
        if parent is None or parent in self._announced:
            self._ledger.held(Rule.PARENTS)
            self._ledger.held(Rule.ORDER)
        elif self._complete:
            self._awaited.setdefault(parent, where)

    def _judge_identity(self, event: BlockStored, where: str) -> None:
        try:
            contents = _contents(event)
        except TokenIdError as error:
            self._ledger.broken(Rule.EVENTS, f"{where}: {error}")
            return
        for name, content in zip(event.block_hashes, contents, strict=True):
            known = self._contents.setdefault((event.group_idx, name), content)
            self._ledger.check(
                Rule.IDENTITY,
                known == content,
                lambda: f"{where}: hash {_text(name)} stood for other tokens, extra keys or another parent before",  # noqa: B023
            )

    # Removals

    def _remove(self, event: BlockRemoved, where: str) -> None:
        """One hash at a time, so that the one which is not held can be named."""
        for name in event.block_hashes:
            self._apply(msgspec.structs.replace(event, block_hashes=[name]))
            unknown, before = self._index.stats(self._handle).unknown_removals, self._unknown_removals
            self._unknown_removals = unknown
            if unknown == before:
                self._ledger.held(Rule.REMOVALS)
            elif self._complete:
                self._ledger.broken(
                    Rule.REMOVALS, f"{where}: {_text(name)} is not held in {event.medium or 'any tier'}"
                )


def _text(name: BlockHash) -> str:
    return name.hex() if isinstance(name, bytes) else str(name)


def _contents(event: BlockStored) -> list[int]:
    """A digest of each block of a dense store: its tokens, its parent, and what else went into its hash."""
    step = event.units_per_block
    extras = event.extra_keys or [None] * len(event.block_hashes)
    parents = [event.parent_block_hash, *event.block_hashes]
    return [
        _digest(event.token_ids[block * step : (block + 1) * step], parents[block], extras[block : block + 1], event)
        for block in range(len(event.block_hashes))
    ]


def _digest(tokens: Sequence[int], parent: BlockHash | None, extra: Sequence[object], event: BlockStored) -> int:
    rest = repr((parent, extra, event.cache_salt, event.lora_name)).encode()
    return xxh3_64_intdigest(pack_tokens(tokens) + rest)
