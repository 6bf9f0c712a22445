"""Pure overlap: where most of the prompt is held, whatever waits there; chance among equals."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from router.choice.candidate import Candidate, Choice, Circumstances, Score, least

__all__ = ["Overlap"]


class Overlap:
    """Looks at nothing but what is held."""

    def choose(self, candidates: Sequence[Candidate], *, around: Circumstances, random: Random) -> Choice:
        """``cost`` is the number of tokens to compute."""
        index = least(range(len(candidates)), lambda place: candidates[place].uncached_tokens, random)
        return Choice(index, [Score(float(one.uncached_tokens), {}) for one in candidates])
