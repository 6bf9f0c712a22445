"""One answer while it grows: outputs of the engine in, pieces of text out. Pure; the caller brings the time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.model.tokenizer import Decoder
from engine.request import FinishReason, Namespace, Output, SamplingParams
from engine.server.stop_text import StopText

__all__ = ["Answer", "Ask", "Finish"]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt, and how it is to be continued."""

    rid: str
    prompt: Sequence[int]
    sampling: SamplingParams
    namespace: Namespace = Namespace()


class Finish(msgspec.Struct, frozen=True):
    """Why an answer ended; ``matched`` is the token id or the text that stopped it."""

    kind: FinishReason
    matched: int | str | None = None


class Answer:
    """The answer to one ``Ask``. ``output_ids`` are the tokens it was made of, a final stop token included.

    A stop text is cut off the text; the ids that spelled it stay in ``output_ids``, ids after it do not.
    """

    def __init__(self, ask: Ask, *, index: int, dp_rank: int, decoder: Decoder, started: float) -> None:
        self.ask = ask
        self.index = index
        self.dp_rank = dp_rank
        self.started = started
        self.first_token_at: float | None = None
        self.cached_tokens = 0
        self.output_ids: list[int] = []
        self.finish: Finish | None = None
        self._decoder = decoder
        self._stop = StopText(ask.sampling.stop)
        self._pieces: list[str] = []

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended, in one word."""
        return None if self.finish is None else self.finish.kind

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def feed(self, output: Output, *, now: float) -> str:
        """Take what the engine computed; the text that it adds."""
        assert self.finish is None, "an answer that has ended gets no more output"
        self.cached_tokens = output.cached_tokens
        if output.token_ids and self.first_token_at is None:
            self.first_token_at = now
        piece = self._take(output.token_ids)
        if output.finish_reason is not None and self.finish is None:
            stopped_by_token = output.finish_reason == "stop" and self.output_ids
            self.finish = Finish(output.finish_reason, self.output_ids[-1] if stopped_by_token else None)
            piece += self._let_through(self._decoder.finish()) + self._stop.finish()
        self._pieces.append(piece)
        return piece

    def _take(self, tokens: Sequence[int]) -> str:
        if not self.ask.sampling.stop:
            self.output_ids += tokens
            return self._decoder.feed(tokens)
        piece = ""
        for token in tokens:
            self.output_ids.append(token)
            piece += self._let_through(self._decoder.feed((token,)))
            if self.finish is not None:
                break
        return piece

    def _let_through(self, text: str) -> str:
        sure = self._stop.feed(text)
        if self._stop.matched is not None:
            self.finish = Finish("stop", self._stop.matched)
        return sure
