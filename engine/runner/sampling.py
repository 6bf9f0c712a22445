"""The choice of next tokens. The random draw is a pure function of a seed and a position.

So a seeded answer does not depend on what else was in the batch, nor on the number of ranks, nor on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

from engine.request import SamplingParams
from engine.runner.base import Chunk

__all__ = ["Draw", "draws_of", "sample"]


class Draw(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose one next token: the parameters, and a number in ``[0, 1)`` that decides."""

    params: SamplingParams
    chance: float


def draws_of(chunks: Sequence[Chunk]) -> list[Draw]:
    """One draw for each chunk that samples, in order."""
    return [
        Draw(params=chunk.sampling, chance=_chance(chunk, chunk.sampling))
        for chunk in chunks
        if chunk.sampling is not None
    ]


def _chance(chunk: Chunk, params: SamplingParams) -> float:
    """Of the request's seed, or of its id where it has none, and of the position that the token will stand at."""
    source = f"request {chunk.request_id}" if params.seed is None else f"seed {params.seed}"
    position = chunk.context_length + len(chunk.tokens)
    # 53 bits are what a float holds, so the quotient never rounds up to 1.
    return (xxh3_64_intdigest(f"{source} {position}".encode()) >> 11) / 2**53


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """Choose a token for each row of ``logits`` ``[samples, vocab]``: the likeliest at temperature 0, else by chance.

    ``top_k`` keeps the k likeliest (below 1: all); ``top_p`` the fewest whose probabilities reach it. Both at once keep
    what both would keep.
    """
    tokens = logits.argmax(dim=-1)
    random = [row for row, draw in enumerate(draws) if draw.params.temperature > 0]
    if random:
        tokens[random] = _sample_random(logits[random], [draws[row] for row in random])
    return [int(token) for token in tokens.tolist()]


def _sample_random(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    temperature = _column((draw.params.temperature for draw in draws), logits)
    # Float64, or the chances of a large vocabulary's tail would be lost in rounding.
    probabilities, tokens = (logits.double() / temperature).softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    before = probabilities.cumsum(dim=-1) - probabilities
    vocab = logits.shape[1]
    top_k = _column((draw.params.top_k if draw.params.top_k > 0 else vocab for draw in draws), logits)
    top_p = _column((draw.params.top_p for draw in draws), logits)
    keep = (torch.arange(vocab, device=logits.device) < top_k) & (before < top_p)
    keep[:, 0] = True
    reached = (probabilities * keep).cumsum(dim=-1)
    target = _column((draw.chance for draw in draws), logits) * reached[:, -1:]
    chosen = (reached <= target).sum(dim=-1, keepdim=True).clamp_max(vocab - 1)
    return tokens.gather(1, chosen).squeeze(1)


def _column(values: Iterable[float], like: Tensor) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64, device=like.device).unsqueeze(1)
