"""A prompt that is known by its keys only, as a trace has it; looked up in an index like any other.

At a width that was not recorded its keys are hashed from its ids, where these were; else it has stand-ins, where the
finest recorded width divides that: keys of the same prefixes under other names. They tell prefixes apart as the real
ones would, and are nobody's block, as the real ones are nobody's either: a lane at that width would have made the
recorder keep its keys.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from contract.hashing import block_keys, extend_key
from router.prompt import BlockKeys, Prompt
from router.trace.records import PrefixKeys, Routed

__all__ = ["RecordedPrompt", "WidthError"]


class WidthError(Exception):
    """A width that prompts of a trace cannot be looked up at; the message names those that they can."""


_NO_KEYS = BlockKeys.known(array("Q"))


class RecordedPrompt(Prompt):
    """The prompt of a routed request, without its last token, which an engine always computes.

    ``hashed_at``: whatever width a lane has, the prompt is hashed at this one, as a router does that has one width.

    Raises:
        WidthError: no recorded width divides ``hashed_at``.
    """

    def __init__(self, routed: Routed, *, hashed_at: int | None = None) -> None:
        super().__init__(())
        self.namespaced = routed.namespaced
        self._ids_known = routed.token_ids or ()
        self._tokens = max(routed.prompt_tokens - 1, 0)
        self._recorded = {(prefix.width, prefix.pairs): prefix for prefix in routed.prefixes}
        self._lists: dict[tuple[int, bool], BlockKeys] = {}
        self._fixed: BlockKeys | None = None
        if hashed_at is not None:
            self._fixed = self._at(hashed_at)

    def __len__(self) -> int:
        return self._tokens

    def head(self, count: int) -> Sequence[int]:
        """The first ids, where they were recorded."""
        return self._ids_known[:count]

    def keys(self, *, width: int, pairs: bool = False) -> BlockKeys:
        """See `Prompt`. None at a width that was not recorded."""
        if self._fixed is not None:
            return self._fixed
        found = self._lists.get((width, pairs))
        if found is None:
            prefix = self._recorded.get((width, pairs))
            found = self._lists[width, pairs] = _NO_KEYS if prefix is None else BlockKeys.known(self._full(prefix))
        return found

    def _at(self, width: int) -> BlockKeys:
        """Keys at a width, real ones where there are."""
        if (width, False) in self._recorded:
            return self.keys(width=width)
        if self._ids_known and not self.namespaced:  # nobody recorded which adapter or salt
            return BlockKeys.known(block_keys(self._ids_known, width=width))
        plain = [prefix for (_, pairs), prefix in self._recorded.items() if not pairs]
        finer = [prefix for prefix in plain if width % prefix.width == 0]
        if not finer:
            known = ", ".join(str(prefix.width) for prefix in plain) or "no width"
            raise WidthError(
                f"block size {width}: prompts were recorded at {known}, of which none divides it; "
                "--trace-tokens records what is asked at any"
            )
        prefix = max(finer, key=lambda one: one.width)
        step = width // prefix.width
        return BlockKeys.known(array("Q", (extend_key(key, width) for key in self._full(prefix)[step - 1 :: step])))

    def _full(self, prefix: PrefixKeys) -> array[int]:
        """Without the key of a rest that fills no block, and of one that only the last token completes."""
        return prefix.keys[: self._tokens // prefix.width]
