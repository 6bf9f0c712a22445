"""Asks an engine's replay endpoint for what its lane's stream wants, and looks again where that seems wise.

Each attempt is a fresh connection with a deadline between answers. After every connect of the live side the last batch
is verified once more; a lane that has lost trust is tried to recover, ever more rarely. The stream decides what an
answer means; this only brings it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from contract.endpoint import EndpointError
from contract.framing import Frame, FramingError, parse_replay_reply, replay_request
from router.intake.link import Link, reach, require_reachable
from router.intake.stream import Action, AskReplay, LaneStream
from router.intake.stream_report import SubscriberLimits

__all__ = ["Replays"]


class _ReplayError(Exception):
    """An attempt at a replay that came to nothing; the message says why."""


class Replays:
    """The replays of one lane."""

    def __init__(
        self,
        stream: LaneStream,
        limits: SubscriberLimits,
        *,
        perform: Callable[[Sequence[Action]], None],
        free: Callable[[], Awaitable[object]],
        on_malformed: Callable[[Exception], None],
    ) -> None:
        """``perform`` carries out what the stream decides, and ``free`` returns when all of that is done."""
        self._stream = stream
        self._limits = limits
        self._perform = perform
        self._free = free
        self._on_malformed = on_malformed
        self._wanted: AskReplay | None = None
        self._wake = asyncio.Event()
        self._settling = False

    def ask(self, wanted: AskReplay) -> None:
        """The stream wants this replay now, and none before it any more."""
        self._wanted = wanted
        self._wake.set()

    def settle(self) -> None:
        """The live connection stands: verify the last batch in a moment, when the subscription has taken effect."""
        self._settling = True
        self._wake.set()

    async def serve(self, endpoint: str) -> None:
        """Answer what the stream asks for; in between, look again after a connect, and try to recover lost trust."""
        pause = self._limits.recover
        while True:
            trusted = self._stream.trusted
            pause = self._limits.recover if trusted else pause
            if not await self._woken(self._limits.settle if self._settling else None if trusted else pause):
                pause = pause if self._settling else min(2 * pause, self._limits.recover_most)
                self._settling = False
                self._perform(self._stream.check())
            while self._wanted is not None:
                await self._replay(endpoint)

    async def _woken(self, within: float | None) -> bool:
        try:
            async with asyncio.timeout(within):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    async def _replay(self, endpoint: str) -> None:
        """Try for the replay wanted now until it ends, is replaced by another, or has failed too often."""
        wanted, why = self._wanted, ""
        for attempt in range(self._limits.attempts):
            if attempt:
                await asyncio.sleep(self._limits.backoff * 2 ** (attempt - 1))
                if self._wanted is not wanted:
                    return
                wanted = self._wanted = self._stream.replay_again()
            assert wanted is not None, "a replay is tried only while one is wanted"
            try:
                await self._attempt(endpoint, wanted)
                return
            except _ReplayError as error:
                why = str(error)
        self._wanted = None
        self._perform(self._stream.replay_failed(why))

    async def _attempt(self, endpoint: str, wanted: AskReplay) -> None:
        """One request on a fresh connection, and its answers until the end, or until something else is wanted.

        Raises:
            _ReplayError: no answer within the deadline, or none of this protocol.
        """
        news = asyncio.Event()
        link = await self._reach(endpoint, news)
        try:
            link.send(replay_request(wanted.start))
            while self._wanted is wanted:
                await self._free()
                reply = await self._reply(endpoint, link, news)
                if self._wanted is wanted:
                    self._take(reply)
        finally:
            link.close()

    async def _reach(self, endpoint: str, news: asyncio.Event) -> Link:
        try:
            require_reachable(endpoint)
            async with asyncio.timeout(self._limits.reply_deadline):
                return await reach(
                    endpoint,
                    "DEALER",
                    most_bytes=self._limits.message_bytes,
                    wake=news.set,
                    on_refusal=self._on_malformed,
                )
        except EndpointError as error:
            raise _ReplayError(f"cannot ask {endpoint} for a replay: {error}") from None
        except TimeoutError:
            raise self._too_late(endpoint) from None

    async def _reply(self, endpoint: str, link: Link, news: asyncio.Event) -> Frame | None:
        try:
            async with asyncio.timeout(self._limits.reply_deadline):
                while (frames := link.next()) is None:
                    news.clear()
                    if link.closed.done():
                        raise _ReplayError(
                            f"{endpoint} hung up before its replay ended: {link.why or 'without a word'}"
                        )
                    await news.wait()
            return parse_replay_reply(frames)
        except TimeoutError:
            raise self._too_late(endpoint) from None
        except FramingError as error:
            self._on_malformed(error)
            raise _ReplayError(f"{endpoint} answered a replay in another protocol: {error}") from None

    def _too_late(self, endpoint: str) -> _ReplayError:
        return _ReplayError(f"{endpoint} did not answer a replay within {self._limits.reply_deadline:g} s")

    def _take(self, reply: Frame | None) -> None:
        if reply is None:
            self._wanted = None
            self._perform(self._stream.replay_ended())
        else:
            self._perform(self._stream.replayed(reply))
