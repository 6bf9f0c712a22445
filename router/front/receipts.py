"""Why each of the last requests went where it went, and what came of it.

A receipt is opened when a request arrives and filled in as it passes; nothing is rendered until somebody asks. It holds
decisions and times, never a prompt, and the ring forgets the oldest.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec

from router.choice.chooser import Decision
from router.fleet.lane import Lane
from router.front.errors import ApiError
from router.front.headers import CLIENT_ID_HEADER, REQUEST_ID_HEADER, Headers
from router.front.plan import Plan
from router.front.tape import RequestTape
from router.front.views import Chosen, ExplainedLane, explanation

__all__ = ["Receipt", "ReceiptView", "Receipts", "receipt_view", "worker_of"]

MAX_CLIENT_ID = 200
_REQUEST_ID, _CLIENT_ID = REQUEST_ID_HEADER.lower(), CLIENT_ID_HEADER.lower()
_OF_WORKER = re.compile(r"([0-9]{1,4})-[0-9a-f]{12}-[0-9]+", re.ASCII)


class Receipt:
    """One request. Times are seconds since the epoch; None: that has not happened.

    ``decisions`` has one entry an attempt, ``failures`` why each attempt but the last one was given up, and in the end
    why the request was. ``reported`` is what the engine said it had cached. ``tape`` is where attempts are recorded.
    """

    __slots__ = (
        "chosen_at",
        "client_id",
        "code",
        "decisions",
        "ended_at",
        "failures",
        "first_byte_at",
        "id",
        "model",
        "received_at",
        "reported",
        "route",
        "status",
        "stream",
        "tape",
    )

    def __init__(self, number: str, *, route: str, client_id: str | None, tape: RequestTape | None = None) -> None:
        self.id = number
        self.tape = tape
        self.route = route
        self.client_id = client_id
        self.model: str | None = None
        self.stream: bool | None = None
        self.decisions: list[Decision[Lane]] = []
        self.failures: list[str] = []
        self.reported: int | None = None
        self.status: int | None = None
        self.code: str | None = None
        self.received_at = time.time()
        self.chosen_at: float | None = None
        self.first_byte_at: float | None = None
        self.ended_at: float | None = None

    def planned(self, plan: Plan) -> None:
        """What was asked for is known."""
        self.model, self.stream = plan.request.model, plan.request.stream

    def chose(self, decision: Decision[Lane]) -> None:
        """A lane was chosen, for the first attempt or for another one."""
        self.decisions.append(decision)
        self.chosen_at = time.time()

    def refused(self, error: ApiError) -> None:
        """The router answered for itself."""
        self.code = error.code
        self.failures.append(str(error))

    def answered(self, headers: Headers) -> Headers:
        """The client's answer begins: with these headers, and those that name the request.

        An id that is the client's own name for it comes back, but where the engine has sent one itself.
        """
        self.first_byte_at = time.time()
        named = [field for field in headers if field[0].lower() != _REQUEST_ID]
        named.append((REQUEST_ID_HEADER, self.id))
        if self.client_id is not None and all(name.lower() != _CLIENT_ID for name, _ in headers):
            named.append((CLIENT_ID_HEADER, self.client_id))
        return named

    def ended(self, *, status: int) -> None:
        """The request is over; ``status`` is what the client got, or 499 where it did not wait."""
        self.status, self.ended_at = status, time.time()


class Receipts:
    """The last ``limit`` receipts. Ids cannot be guessed from one router to the next, and are never given twice.

    ``place`` is a worker's: it stands at the front of its ids.
    """

    def __init__(self, *, limit: int, place: int | None = None, tape: RequestTape | None = None) -> None:
        self._limit = limit
        self._tape = tape
        self._by_id: OrderedDict[str, Receipt] = OrderedDict()
        self._prefix = secrets.token_hex(6) if place is None else f"{place}-{secrets.token_hex(6)}"
        self._opened = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, client_id: str | None, *, route: str) -> Receipt:
        """A receipt for a request that has just arrived; its answer will carry the id."""
        self._opened += 1
        receipt = Receipt(
            f"{self._prefix}-{self._opened}",
            route=route,
            client_id=client_id and client_id[:MAX_CLIENT_ID],
            tape=self._tape,
        )
        self._by_id[receipt.id] = receipt
        if len(self._by_id) > self._limit:
            self._by_id.popitem(last=False)
        return receipt

    def get(self, number: str) -> Receipt | None:
        """The receipt of an id; None where there is none any more."""
        return self._by_id.get(number)


def worker_of(number: str) -> int | None:
    """The place of the worker that gave an id; None where the id tells of none."""
    found = _OF_WORKER.fullmatch(number)
    return None if found is None else int(found[1])


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds since the epoch. ``first_byte`` and ``end`` are the client's side."""

    received: float
    chosen: float | None
    first_byte: float | None
    end: float | None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One sending of the request. ``failure`` says why it was given up; None: its answer is the client's."""

    chosen: Chosen
    predicted: int
    failure: str | None


class ReceiptView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/requests/{id}``. ``chosen``, ``predicted`` and ``lanes`` are those of the last attempt.

    ``status`` is None while the request runs. Tokens are prompt tokens.
    """

    id: str
    client_request_id: str | None
    route: str
    model: str | None
    stream: bool | None
    status: int | None
    error: str | None
    code: str | None
    prompt_tokens: int | None
    predicted: int | None
    reported: int | None
    retries: int
    chosen: Chosen | None
    lanes: Sequence[ExplainedLane]
    attempts: Sequence[Attempt]
    times: Times


def receipt_view(receipt: Receipt) -> ReceiptView:
    """A receipt as it is shown."""
    last = receipt.decisions[-1] if receipt.decisions else None
    shown = None if last is None else explanation(last)
    return ReceiptView(
        id=receipt.id,
        client_request_id=receipt.client_id,
        route=receipt.route,
        model=receipt.model,
        stream=receipt.stream,
        status=receipt.status,
        error=receipt.failures[-1] if receipt.code is not None else None,
        code=receipt.code,
        prompt_tokens=None if last is None else last.prompt_tokens,
        predicted=None if last is None else last.chosen.matched_tokens,
        reported=receipt.reported,
        retries=max(0, len(receipt.decisions) - 1),
        chosen=None if shown is None else shown.chosen,
        lanes=() if shown is None else shown.lanes,
        attempts=_attempts(receipt),
        times=Times(
            received=receipt.received_at,
            chosen=receipt.chosen_at,
            first_byte=receipt.first_byte_at,
            end=receipt.ended_at,
        ),
    )


def _attempts(receipt: Receipt) -> list[Attempt]:
    failures: Mapping[int, str] = dict(enumerate(receipt.failures))
    return [
        Attempt(
            chosen=Chosen(decision.chosen.lane.url, decision.chosen.lane.dp_rank),
            predicted=decision.chosen.matched_tokens,
            failure=failures.get(place),
        )
        for place, decision in enumerate(receipt.decisions)
    ]
