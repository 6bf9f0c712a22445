"""The thread of one data-parallel rank: requests in, steps, outputs and events out.

A step is schedule, run, commit, publish, deliver. Whatever other threads want (a request, an abort, a call) waits in
an inbox and happens between two steps; with nothing to do the thread sleeps until somebody wants something. All
decisions are the scheduler's.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

import msgspec

from contract.events import Event
from engine.job import pack_prompt
from engine.load import Load
from engine.parallel.world import RankFailedError
from engine.request import Namespace, Output, RequestError, SamplingParams
from engine.runner.base import Runner
from engine.scheduler import Scheduler
from engine.wishes import Abort, Call, EngineDead, Submission, Wish

__all__ = ["EngineDead", "EngineLoop", "EngineOverloaded", "Holding", "Listener", "Output", "RequestError"]

T = TypeVar("T")
Listener = Callable[[Output], None]
"""Called on the loop's thread with each output of one request; must return quickly."""

logger = logging.getLogger(__name__)
NO_OUTPUTS: Mapping[int, Output] = {}


class EngineOverloaded(RuntimeError):  # noqa: N818 - says what is, not what went wrong
    """As many requests run and wait as may; the message names the limit."""


class Holding(msgspec.Struct, frozen=True):
    """Everything the cache held right after the batch numbered ``seq`` was published (-1: none yet)."""

    seq: int
    events: Sequence[Event]


class EngineLoop:
    """One lane's engine. Public methods may be called from any thread; ``start`` and ``close`` from the owner's.

    At most ``max_running + max_waiting`` requests are in it. The runner stays its owner's, to be closed after the loop.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        publish: Callable[[Sequence[Event]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._publish = publish
        self._clock = clock
        self._changed = threading.Condition()  # guards the inbox, the two below it and how the loop ended
        self._inbox: deque[Wish] = deque()
        self._listeners: dict[int, Listener] = {}
        self._leaving: set[int] = set()  # aborted, not dropped yet
        self._closing = False
        self._ended: EngineDead | None = None
        self._doom: Exception | None = None  # to be raised on the loop's thread
        self._failed: Exception | None = None
        self._ids = itertools.count()
        self._load = scheduler.load()
        self._busy_seconds = 0.0
        self._listener_errors = 0
        self._thread = threading.Thread(target=self._run, name="engine-loop", daemon=True)

    def start(self) -> None:
        """Start the thread, once. The batch that says that the cache is empty is published first."""
        self._thread.start()

    def close(self) -> None:
        """End after the step in progress; requests still here are aborted, calls still waiting fail. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is None:
            self._end(EngineDead("the engine was closed before it started"))
        else:
            self._thread.join()

    def fail(self, error: Exception) -> None:
        """End as if a step had failed with ``error``: for what befalls a runner between steps. From any thread."""
        with self._changed:
            self._doom = self._doom or error
            self._changed.notify()

    @property
    def failed(self) -> Exception | None:
        """What ended the loop, where a step did."""
        return self._failed

    @property
    def busy_seconds(self) -> float:
        """Time spent in steps since the start."""
        return self._busy_seconds

    @property
    def listener_errors(self) -> int:
        """Requests dropped because their listener raised."""
        return self._listener_errors

    def load(self) -> Load:
        """The lane between its last two steps."""
        return self._load

    def submit(self, prompt: Sequence[int], sampling: SamplingParams, namespace: Namespace, on_output: Listener) -> int:
        """Queue a request and return its id. ``on_output`` gets every output, the last one with a ``finish_reason``.

        Raises:
            RequestError: it could never be carried out.
            EngineOverloaded: too many requests are in the engine.
            EngineDead: nothing is computed any more.
        """
        self._scheduler.check(len(prompt), sampling)
        packed = pack_prompt(prompt)
        limits = self._scheduler.limits
        most = limits.max_running + limits.max_waiting
        with self._changed:
            if len(self._listeners) >= most:
                raise EngineOverloaded(f"{len(self._listeners)} requests are in the engine, its limit is {most}")
            request_id = next(self._ids)
            self._put(Submission(request_id, packed, sampling, namespace))
            self._listeners[request_id] = on_output
        return request_id

    def abort(self, request_id: int) -> None:
        """Drop a request before the next step; its listener gets a last output. Nothing happens if it has ended."""
        with self._changed:
            if request_id in self._listeners and request_id not in self._leaving:
                self._put(Abort(request_id))
                self._leaving.add(request_id)

    def call(self, fn: Callable[[], T]) -> Future[T]:
        """Run ``fn`` on the loop's thread between two steps, when all that happened is published.

        What it did to the cache is published before the future is done. The future fails with ``EngineDead`` if the
        loop ends first.

        Raises:
            EngineDead: nothing is computed any more.
        """
        call = Call(fn)
        with self._changed:
            self._put(call)
        return call.future

    def flush(self) -> Future[bool]:
        """Empty the cache if no request is in the engine; whether it was emptied."""
        return self.call(self._scheduler.flush)

    def snapshot(self, last_seq: Callable[[], int]) -> Future[Holding]:
        """Everything held after the batch whose number ``last_seq`` reads, on the loop's thread, from the publisher."""
        return self.call(lambda: Holding(last_seq(), self._scheduler.held_events()))

    def _put(self, wish: Wish) -> None:
        if self._ended is not None:
            raise EngineDead(str(self._ended))
        self._inbox.append(wish)
        self._changed.notify()

    def _run(self) -> None:
        reason = "the engine was closed"
        try:
            self._settle()
            while self._wait():
                self._turn()
        except Exception as error:  # the thread's top level: it ends, and nobody who waits is forgotten
            # A rank that was lost left no trace in this process; its name is all there is to say.
            lost = isinstance(error, RankFailedError) and error.__cause__ is None
            logger.error("a step failed, the engine stops: %s", error, exc_info=not lost)
            self._failed = error
            reason = f"a step failed: {type(error).__name__}: {error}"
        finally:
            self._end(EngineDead(reason))

    def _wait(self) -> bool:
        """Sleep until there is something to do; false when it is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._inbox or self._closing or self._doom or not self._scheduler.idle)
            if self._doom is not None:
                raise self._doom
            return not self._closing

    def _turn(self) -> None:
        self._empty_inbox()
        chunks = self._scheduler.schedule()
        if chunks:
            started = self._clock()
            outputs = self._scheduler.commit(self._runner.run(chunks))
            self._busy_seconds += self._clock() - started
            self._settle(outputs)

    def _empty_inbox(self) -> None:
        """Do what was wished when the turn began; what is wished meanwhile is the next turn's."""
        for _ in range(len(self._inbox)):
            self._grant(self._inbox[0])
            self._inbox.popleft()  # only now: should granting it end the loop, it is still there to be told
        self._settle()

    def _grant(self, wish: Wish) -> None:
        match wish:
            case Submission():
                self._scheduler.add(wish.request_id, wish.prompt, wish.sampling, wish.namespace)
            case Abort():
                output = self._scheduler.abort(wish.request_id)
                self._settle({} if output is None else {wish.request_id: output})
            case Call():
                self._settle()
                wish.run(self._settle)

    def _settle(self, outputs: Mapping[int, Output] = NO_OUTPUTS) -> None:
        """Let the world know: events first, then the load, then outputs, so that whoever has an output finds both."""
        events = self._scheduler.take_events()
        if events:
            self._publish(events)
        self._load = self._scheduler.load()
        for request_id, output in outputs.items():
            self._deliver(request_id, output)

    def _deliver(self, request_id: int, output: Output) -> None:
        listener = self._listeners[request_id]
        if output.finish_reason is not None:
            self._forget(request_id)
        if not self._tell(request_id, listener, output):
            self._forget(request_id)
            self._scheduler.abort(request_id)
            self._settle()

    def _tell(self, request_id: int, listener: Listener, output: Output) -> bool:
        """Call the listener; false where it raised. One client's listener must not cost the others their engine."""
        try:
            listener(output)
        except Exception:
            logger.exception("the listener of request %d failed, the request is dropped", request_id)
            self._listener_errors += 1
            return False
        return True

    def _forget(self, request_id: int) -> None:
        with self._changed:
            self._listeners.pop(request_id, None)
            self._leaving.discard(request_id)

    def _end(self, error: EngineDead) -> None:
        """Tell everybody who waits; from here on nobody can start to wait."""
        with self._changed:
            self._ended = error
            wishes, self._inbox = self._inbox, deque()
            listeners, self._listeners = self._listeners, {}
        for wish in wishes:
            if isinstance(wish, Call):
                wish.fail(error)
        last = Output(token_ids=[], cached_tokens=0, finish_reason="abort", error=str(error))
        for request_id, listener in listeners.items():
            self._tell(request_id, listener, last)
