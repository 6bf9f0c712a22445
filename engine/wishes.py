"""What other threads want of an engine's loop: a wish is granted between two steps, or told that it never will be."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Generic, TypeVar

import msgspec

from engine.request import Namespace, SamplingParams

__all__ = ["Abort", "Call", "EngineDead", "Submission", "Wish"]

T = TypeVar("T")


class EngineDead(RuntimeError):  # noqa: N818 - says what is, not what went wrong
    """A step failed or the loop was closed: nothing will be computed any more."""


class Submission(msgspec.Struct, frozen=True):
    """Take this request in."""

    request_id: int
    prompt: array[int]
    sampling: SamplingParams
    namespace: Namespace


class Abort(msgspec.Struct, frozen=True):
    """Drop this request."""

    request_id: int


class Call(Generic[T]):
    """Run this function; ``future`` waits for it."""

    def __init__(self, fn: Callable[[], T]) -> None:
        self._fn = fn
        self.future: Future[T] = Future()

    def run(self, settle: Callable[[], None]) -> None:
        """Run it, and ``settle`` what it changed, before the future is done."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._fn()
        except Exception as error:  # belongs to the caller, who reads it from the future
            self.future.set_exception(error)
            return
        settle()
        self.future.set_result(result)

    def fail(self, error: EngineDead) -> None:
        """It will not be run."""
        with contextlib.suppress(InvalidStateError):  # it may be cancelled at any moment
            self.future.set_exception(error)


Wish = Submission | Abort | Call[Any]
