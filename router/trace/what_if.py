"""What another rule, or a router with one fixed width, would have done on the recorded requests and events.

A trace is read once. Its frames go through the real streams into the real index, its requests onto each lane's books as
they were recorded; and before each of them is booked, every rule is asked, through the real chooser, where it would
have sent it. What it saw there, and what the lane held in truth, is added up.

First-order only: caches, loads and learnt speeds are as recorded, whatever a rule would have made of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from router.choice.candidate import Policy
from router.choice.chooser import Chooser
from router.choice.overlap import Overlap
from router.choice.policy import APPROX, POLICIES
from router.intake.index import BlockIndex
from router.prompt import Prompt
from router.trace.reader import TraceReader, Unread
from router.trace.recorded_books import LaneBooks, LaneState, RecordedBooks
from router.trace.recorded_prompt import RecordedPrompt
from router.trace.records import Began, Record, Routed, Served, Skipped
from router.trace.replayer import LaneName, ReplayedLane, Replayer

__all__ = ["FIRST_ORDER", "RECORDED", "RULES", "Outcome", "WhatIf", "what_if"]

RULES: Mapping[str, Callable[[], Policy]] = {**POLICIES, "overlap": Overlap}
"""The router's own rules, and pure overlap: where most is held, whatever waits there."""

RECORDED = "recorded"
"""The name of what was done, among what could have been."""


FIRST_ORDER = (
    "Caches, loads and speeds are as recorded: a first-order answer. What a rule would have made of them in time, "
    "`python -m bench fleet` simulates."
)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One rule on all requests whose prompt is known. Tokens are prompt tokens.

    ``seen`` tokens the rule believed to be held where it sent requests, ``held`` were: its predicted hits, and those
    that there were. ``block_size`` is the one width it hashed at; None: each lane's own. ``agreed`` requests went where
    the recorded router sent them. ``busiest`` is the largest share of requests that one lane got.
    """

    rule: str
    block_size: int | None
    requests: int
    prompt_tokens: int
    seen: int
    held: int
    agreed: int
    busiest: float


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """``outcomes``: what was recorded, then each rule. ``reported`` is the engines' word on ``told`` requests.

    ``unknown`` requests had prompts that nobody tokenized, or no lane; they are in no outcome. ``skipped`` could not
    be read of the file. ``note`` says what kind of answer this is.
    """

    file: str
    note: str
    skipped: Sequence[Unread]
    lanes: int
    unknown: int
    told: int
    told_prompt_tokens: int
    reported: int
    outcomes: Sequence[Outcome]


class _Sums:
    """An outcome in the making."""

    def __init__(self, rule: str, block_size: int | None) -> None:
        self._rule, self._block_size = rule, block_size
        self._requests = self._prompt_tokens = self._seen = self._held = self._agreed = 0
        self._lanes: Counter[LaneName] = Counter()

    def add(self, routed: Routed, lane: LaneName, *, seen: int, held: int, agreed: bool) -> None:
        self._requests += 1
        self._prompt_tokens += routed.prompt_tokens
        self._seen += seen
        self._held += held
        self._agreed += agreed
        self._lanes[lane] += 1

    def outcome(self) -> Outcome:
        return Outcome(
            rule=self._rule,
            block_size=self._block_size,
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            seen=self._seen,
            held=self._held,
            agreed=self._agreed,
            busiest=max(self._lanes.values(), default=0) / max(self._requests, 1),
        )


class _Asked:
    """One rule, asked about every request."""

    def __init__(self, rule: str, block_size: int | None, index: BlockIndex, *, seed: int, now: float) -> None:
        self.block_size = block_size
        self.sums = _Sums(rule, block_size)
        self._by_memory = rule == APPROX
        self._chooser = Chooser(None if self._by_memory else index, RULES[rule](), seed=seed, now=now)

    def ask(self, routed: Routed, prompt: Prompt, lanes: Sequence[LaneBooks]) -> tuple[LaneName, int]:
        """The lane it would have chosen, and the tokens it believed to be there."""
        states = [self._view(books) for books in lanes]
        decision = self._chooser.choose(prompt, prompt_tokens=routed.prompt_tokens, lanes=states, now=routed.at)
        chosen = decision.chosen
        return LaneName(chosen.lane.url, chosen.lane.dp_rank), chosen.matched_tokens

    def _view(self, books: LaneBooks) -> LaneState:
        if self._by_memory:
            return books.by_memory
        return books.by_events if self.block_size is None else books.hashed_at(self.block_size)


class _Reading:
    """One reading of a trace."""

    def __init__(self, rules: Sequence[tuple[str, int | None]], *, seed: int) -> None:
        self._rules = rules
        self._seed = seed
        self._replayer = Replayer()
        self._books = RecordedBooks()
        self._asked: list[_Asked] = []
        self._recorded = _Sums(RECORDED, None)
        self._prompt_tokens: dict[int, int] = {}
        self._now = -math.inf
        self.unknown = self.told = self.told_prompt_tokens = self.reported = 0

    def feed(self, record: Record) -> None:
        record = self._in_time(record)
        self._replayer.feed(record)
        self._books.until(self._now)
        match record:
            case Began() | Skipped():
                self._books.forget()
                self._prompt_tokens.clear()
            case Routed():
                self._routed(record)
            case Served():
                self._served(record)
        self._books.feed(record)

    def _in_time(self, record: Record) -> Record:
        """The record, no earlier than those before it: a recorder's clock may be set back, a router's never is."""
        at = getattr(record, "at", self._now)
        if at < self._now:
            return msgspec.structs.replace(record, at=self._now)
        self._now = at
        return record

    def outcomes(self) -> Iterator[Outcome]:
        yield self._recorded.outcome()
        yield from (asked.sums.outcome() for asked in self._asked)

    @property
    def lanes(self) -> int:
        return len(self._replayer.lanes)

    def _routed(self, routed: Routed) -> None:
        if routed.lane is None:
            self.unknown += 1
            return
        lane = self._replayer.lane(routed.lane)
        prompt = RecordedPrompt(routed) if routed.prefixes else None
        if prompt is None:
            self.unknown += 1
        else:
            self._compare(routed, lane, prompt)
        self._books.book(routed, lane, prompt)

    def _compare(self, routed: Routed, lane: ReplayedLane, prompt: Prompt) -> None:
        if not self._asked:
            index = self._replayer.index
            self._asked = [_Asked(*rule, index, seed=self._seed, now=routed.at) for rule in self._rules]
        if routed.prompts == 1:  # the report of a batch is a sum over prompts
            self._prompt_tokens[routed.request] = routed.prompt_tokens
        held = self._held(prompt, lane)
        self._recorded.add(routed, lane.name, seen=routed.predicted, held=held, agreed=True)
        candidates = [self._books.of(self._replayer.lane(number)) for number in routed.lanes]
        for asked in self._asked:
            hashed = prompt if asked.block_size is None else RecordedPrompt(routed, hashed_at=asked.block_size)
            name, seen = asked.ask(routed, hashed, candidates)
            held = self._held(prompt, self._replayer.lanes[name])
            asked.sums.add(routed, name, seen=seen, held=held, agreed=name == lane.name)

    def _held(self, prompt: Prompt, lane: ReplayedLane) -> int:
        return self._replayer.index.match(prompt, [lane.handle])[lane.handle].tokens

    def _served(self, served: Served) -> None:
        prompt_tokens = self._prompt_tokens.pop(served.request, None)
        if prompt_tokens is not None and served.reported is not None:
            self.told += 1
            self.told_prompt_tokens += prompt_tokens
            self.reported += served.reported


def what_if(reader: TraceReader, *, policies: Sequence[str], block_sizes: Sequence[int] = (), seed: int = 0) -> WhatIf:
    """Ask each rule, as it is, and for each width once more as a router that hashes everything at that width.

    ``approx`` looks at no lane's blocks, so that it finds the same at any width, and is asked once.

    Raises:
        TraceFileError: the trace cannot be read, or is damaged.
        WidthError: its prompts cannot be looked up at one of the widths.
    """
    rules = [(rule, size) for size in (None, *block_sizes) for rule in policies if size is None or rule != APPROX]
    reading = _Reading(rules, seed=seed)
    for record in reader:
        reading.feed(record)
    return WhatIf(
        file=str(reader.path),
        note=FIRST_ORDER,
        skipped=reader.skipped,
        lanes=reading.lanes,
        unknown=reading.unknown,
        told=reading.told,
        told_prompt_tokens=reading.told_prompt_tokens,
        reported=reading.reported,
        outcomes=list(reading.outcomes()),
    )
