"""One HTTP request's prompts on their way through the lanes. Leaving it early frees them at once."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

import msgspec

from contract.api_error import ApiError
from engine.loop import EngineDead, EngineOverloaded
from engine.model.tokenizer import Tokenizer
from engine.request import Output, RequestError
from engine.server.answer import Answer, Ask
from engine.server.errors import overloaded, unavailable
from engine.server.lanes import Lane, Lanes
from engine.server.mailroom import Mailbox, Mailroom
from engine.server.metrics import RequestMetrics

__all__ = ["Exchange", "Piece"]


class Piece(msgspec.Struct, frozen=True):
    """New text of one answer; where ``answer.finish`` is set it is the last."""

    answer: Answer
    text: str


class _Ticket(msgspec.Struct, frozen=True):
    """A prompt in flight: where it is and what it is called there."""

    answer: Answer
    lane: Lane
    request_id: int


class Exchange:
    """Asks all prompts of a request together. A context: entering submits them, leaving aborts what has not ended."""

    def __init__(
        self,
        asks: Sequence[Ask],
        *,
        tokenizer: Tokenizer,
        lanes: Lanes,
        pinned: int | None,
        mailroom: Mailroom,
        metrics: RequestMetrics,
    ) -> None:
        self._asks = asks
        self._tokenizer = tokenizer
        self._lanes = lanes
        self._pinned = pinned
        self._mailroom = mailroom
        self._metrics = metrics
        self._box = Mailbox()
        self._open: dict[int, _Ticket] = {}
        self.answers: list[Answer] = []

    def __enter__(self) -> Self:
        try:
            for index, ask in enumerate(self._asks):
                self._submit(index, ask)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    async def pieces(self) -> AsyncIterator[Piece]:
        """Pieces of all answers as they are computed, until all have ended.

        Raises:
            ApiError: 503, the engine has given a prompt up.
        """
        while self._open:
            for index, output in (await self._box.take()).items():
                ticket = self._open.get(index)
                if ticket is None:  # it ended by a stop text, and the engine had computed on
                    continue
                if output.token_ids or output.error is None:
                    yield Piece(ticket.answer, self._feed(ticket, output))
                if output.error is not None:
                    raise unavailable(output.error)

    async def finished(self) -> list[Answer]:
        """All answers, once they have ended."""
        async for _ in self.pieces():
            pass
        return self.answers

    def _submit(self, index: int, ask: Ask) -> None:
        lane = self._lanes.choose(self._pinned)
        answer = Answer(
            ask, index=index, dp_rank=lane.dp_rank, decoder=self._tokenizer.decoder(), started=time.monotonic()
        )
        try:
            request_id = lane.loop.submit(
                ask.prompt, ask.sampling, ask.namespace, self._mailroom.address(self._box, index)
            )
        except RequestError as error:
            raise ApiError(str(error)) from None
        except EngineOverloaded as error:
            raise overloaded(str(error)) from None
        except EngineDead as error:
            raise unavailable(str(error)) from None
        self._lanes.enter(lane)
        self.answers.append(answer)
        self._open[index] = _Ticket(answer, lane, request_id)

    def _feed(self, ticket: _Ticket, output: Output) -> str:
        if (
            output.error is not None
        ):  # what was computed before is still part of the answer, the failure is no end of it
            output = msgspec.structs.replace(output, finish_reason=None)
        answer, now = ticket.answer, time.monotonic()
        waiting = answer.first_token_at is None
        text = answer.feed(output, now=now)
        if waiting and answer.first_token_at is not None:
            self._metrics.first_token(now - answer.started)
        if answer.finish is not None:
            self._close(ticket, abort=output.finish_reason is None)
        return text

    def _close(self, ticket: _Ticket, *, abort: bool) -> None:
        del self._open[ticket.answer.index]
        self._lanes.leave(ticket.lane)
        if abort:
            ticket.lane.loop.abort(ticket.request_id)
        self._metrics.ended(ticket.answer, seconds=time.monotonic() - ticket.answer.started)

    def _leave(self) -> None:
        for ticket in list(self._open.values()):
            self._close(ticket, abort=True)
