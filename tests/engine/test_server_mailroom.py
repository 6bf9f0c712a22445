"""Outputs cross from the lanes' threads to the event loop complete, in order, and in few wake-ups."""

from __future__ import annotations

import asyncio
import threading

from patience import PATIENCE, in_time

from engine.request import Output
from engine.server.mailroom import Mailbox, Mailroom

COUNT = 2000


async def test_nothing_is_lost_or_reordered_between_threads() -> None:
    mailroom, box = Mailroom(asyncio.get_running_loop()), Mailbox()

    def post(index: int) -> None:
        deliver = mailroom.address(box, index)
        for number in range(COUNT):
            deliver(Output(token_ids=[number], cached_tokens=0, finish_reason="stop" if number == COUNT - 1 else None))

    threads = [threading.Thread(target=post, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    received: dict[int, list[int]] = {index: [] for index in range(3)}
    ended: set[int] = set()
    async with asyncio.timeout(PATIENCE):
        while len(ended) < 3:
            for index, output in (await box.take()).items():
                received[index] += output.token_ids
                if output.finish_reason is not None:
                    ended.add(index)
    for thread in threads:
        thread.join()
    assert received == {index: list(range(COUNT)) for index in range(3)}


async def test_what_waits_is_delivered_in_one_wake_up_and_joined() -> None:
    loop = asyncio.get_running_loop()
    mailroom, box = Mailroom(loop), Mailbox()
    deliver = mailroom.address(box, 0)
    deliver(Output(token_ids=[1], cached_tokens=6))
    deliver(Output(token_ids=[2], cached_tokens=6))
    deliver(Output(token_ids=[3], cached_tokens=6, finish_reason="length"))
    letters = await in_time(box.take())
    assert letters == {0: Output(token_ids=[1, 2, 3], cached_tokens=6, finish_reason="length")}
