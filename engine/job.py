"""One request on its way through the scheduler: its tokens, how many are computed, and where they are stored."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

from engine.cache.block_table import BlockTable
from engine.request import FinishReason, Namespace, RequestError, SamplingParams
from engine.runner.base import Chunk, StateMoves

__all__ = ["Job", "pack_prompt"]


def pack_prompt(prompt: Sequence[int]) -> array[int]:
    """A copy of the token ids, eight bytes each.

    Raises:
        RequestError: an id outside [0, 2**64).
    """
    try:
        return array("Q", prompt)
    except OverflowError:
        bad = next(token for token in prompt if not 0 <= token < 2**64)
        raise RequestError(f"token id {bad} is outside [0, 2**64)") from None


class Job:
    """Token ranges: ``tokens[:prompt_length]`` was asked, the rest answered; ``[:computed]`` is in the cache's blocks.

    ``prefill_end`` tokens were known when the job was last queued; up to there it prefills, behind it decodes. A
    waiting job has no ``table`` and nothing computed.
    """

    __slots__ = (
        "cached_tokens",
        "computed",
        "namespace",
        "prefill_end",
        "prompt_length",
        "request_id",
        "room_refused",
        "sampling",
        "table",
        "tokens",
    )

    def __init__(self, request_id: int, prompt: array[int], sampling: SamplingParams, namespace: Namespace) -> None:
        self.request_id = request_id
        self.tokens = prompt
        self.prompt_length = len(prompt)
        self.sampling = sampling
        self.namespace = namespace
        self.cached_tokens: int | None = None  # set once, when first admitted
        self.table: BlockTable | None = None
        self.computed = 0
        self.prefill_end = len(prompt)
        self.room_refused = -1  # blocks of room at which it did not fit; -1: not tried

    @property
    def pending_prefill(self) -> int:
        """Tokens known when it was queued that are still to be computed."""
        return max(self.prefill_end - self.computed, 0)

    def start(self, table: BlockTable, *, cached: int) -> None:
        """Admitted: the first ``cached`` tokens are in the table's blocks."""
        self.table = table
        self.computed = cached
        if self.cached_tokens is None:
            self.cached_tokens = cached

    def requeue(self) -> None:
        """Preempted: everything known so far is to be computed again, or found in the cache."""
        self.table = None
        self.computed = 0
        self.prefill_end = len(self.tokens)
        self.room_refused = -1

    def chunk(self, count: int, *, blocks: int, states: StateMoves | None) -> Chunk:
        """The next ``count`` tokens to compute; with their context they lie in the first ``blocks`` blocks."""
        assert self.table is not None, f"request {self.request_id} is not running"
        end = self.computed + count
        return Chunk(
            request_id=self.request_id,
            tokens=self.tokens[self.computed : end].tolist(),
            context_length=self.computed,
            block_table=self.table.blocks[:blocks],
            sampling=self.sampling if end == len(self.tokens) else None,
            states=states,
        )

    def finish_reason(self, *, eos_token_ids: Collection[int], context_length: int) -> FinishReason | None:
        """Whether the last token ends the answer. A stop token asked for ends it even where ``ignore_eos`` is set."""
        token, sampling = self.tokens[-1], self.sampling
        if token in sampling.stop_token_ids or (not sampling.ignore_eos and token in eos_token_ids):
            return "stop"
        if len(self.tokens) - self.prompt_length >= sampling.max_new_tokens or len(self.tokens) >= context_length:
            return "length"
        return None
