"""What is asked of every router: prompts of a length and a form, some of which begin as others do. Pure, seeded."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

import msgspec

from bench.client import COMPLETIONS_PATH
from bench.router.lexicon import TURN, Lexicon
from bench.router.mock_answers import MODEL

__all__ = ["Case", "Form", "Requests", "every_case", "make_requests", "post"]

NEW_TOKENS = 8
_HEAD = "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"


class Form(enum.StrEnum):
    """How a prompt is written."""

    TEXT = "text"
    IDS = "ids"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of request. ``shared``: the share of each prompt that others begin with too."""

    tokens: int
    form: Form
    stream: bool
    shared: float

    @property
    def name(self) -> str:
        """As figures call it."""
        how = "streamed" if self.stream else "whole"
        return f"{self.tokens} {self.form}, {how}, {self.shared:.0%} shared"


def every_case(tokens: Sequence[int]) -> list[Case]:
    """All combinations at the given prompt lengths."""
    kinds = product(tokens, Form, (False, True), (0.0, 0.9))
    return [Case(tokens=count, form=form, stream=stream, shared=shared) for count, form, stream, shared in kinds]


@dataclass(frozen=True, kw_only=True)
class Requests:
    """The same for every router, each ready to be sent. ``first`` begin each family of prompts, and are not timed."""

    first: Sequence[bytes]
    one_by_one: Sequence[bytes]
    at_once: Sequence[bytes]


def make_requests(case: Case, lexicon: Lexicon, *, one_by_one: int, at_once: int, seed: str) -> Requests:
    """Prompts that no other seed has. One after the other, a family is asked twice, all families in turns."""
    random = Random(f"{seed} {case.name}")
    beginning = int(case.tokens * case.shared)
    families = [_draw(lexicon, beginning, random) for _ in range(max(1, one_by_one // 2))] if beginning else []

    def draw(count: int) -> Iterator[bytes]:
        for index in range(count):
            begun = families[index % len(families)] if families else []
            words = [*begun, TURN, *_draw(lexicon, case.tokens - len(begun) - 1, random)]
            yield post(COMPLETIONS_PATH, _body(case, lexicon, words))

    first, later, last = list(draw(len(families))), list(draw(one_by_one)), list(draw(at_once))
    random.shuffle(later)
    random.shuffle(last)
    return Requests(first=first, one_by_one=later, at_once=last)


def _draw(lexicon: Lexicon, count: int, random: Random) -> list[str]:
    return random.choices(lexicon.words, k=count)


def _body(case: Case, lexicon: Lexicon, words: Sequence[str]) -> bytes:
    text = lexicon.text(words)
    options = {"stream_options": {"include_usage": True}} if case.stream else {}
    prompt = lexicon.ids(text) if case.form is Form.IDS else text
    return msgspec.json.encode(
        {"model": MODEL, "prompt": prompt, "max_tokens": NEW_TOKENS, "stream": case.stream, **options}
    )


def post(path: str, body: bytes) -> bytes:
    """A whole HTTP request."""
    return _HEAD.format(path=path, length=len(body)).encode() + body
