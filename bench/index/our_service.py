"""Our index as a service: a router's subscribers, one a lane, and nothing else in the process.

Ends its wait when every lane's last message has been applied: prints ``done``, and ends when its input does.
"""

from __future__ import annotations

import asyncio
import json
import sys

import uvloop

from contract.descriptor import LaneAddress
from router.intake.index import BlockIndex
from router.intake.subscriber import Subscriber

__all__ = ["main"]

LOOK_SECONDS = 0.02


async def _follow(ports: list[int], messages: list[int]) -> None:
    index = BlockIndex()
    lanes = [
        Subscriber(
            address=LaneAddress(dp_rank=0, endpoint=f"tcp://127.0.0.1:{port}", replay_endpoint=None),
            topic="",
            index=index,
            handle=index.add_lane(),
        )
        for port in ports
    ]
    for lane in lanes:
        await lane.start()
    while any(lane.batches < count for lane, count in zip(lanes, messages, strict=True)):  # noqa: ASYNC110 - none tells
        await asyncio.sleep(LOOK_SECONDS)
    print("done", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for lane in lanes:
        await lane.close()


def main() -> None:
    """Follow the publishers that the first line of input names."""
    told = json.loads(sys.stdin.readline())
    uvloop.run(_follow(told["ports"], told["messages"]))


if __name__ == "__main__":
    main()
