"""Publishes the workload: one PUB socket a lane, everything ready before the first frame leaves, then at a steady pace.

The pace is one that indexes keep up with, so that what they are measured by is no queue.

Speaks with its parent in lines: ``ready`` and JSON (ports, messages of each lane, entries stored by all); then
``subscribed`` once every socket has a subscriber; sends all when a line comes in; ends when its input does. The last
message of a lane stores one more block, by which a reader sees that all before it has been taken in.
"""

from __future__ import annotations

import argparse
import itertools
import json
import struct
import sys
import time

import numpy as np
import zmq

from bench.index.wire import payload
from bench.index.workload import Stored, Workload

__all__ = ["last_block_ids", "main"]

BURST, PAUSE_SECONDS = 64, 0.005


def last_block_ids(lane: int, block: int) -> list[int]:
    """The ids of the block that ends a lane's stream."""
    return [lane + 1] * block


def main() -> None:
    """Publish until the parent ends it."""
    parser = argparse.ArgumentParser()
    for name in ("lanes", "block", "entries"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    context = zmq.Context()
    sockets = [context.socket(zmq.XPUB) for _ in range(args.lanes)]
    for socket in sockets:
        socket.set_hwm(0)
        socket.linger = 0
    ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in sockets]
    work = Workload(lanes=args.lanes, block=args.block, entries=args.entries)
    messages, counts = _messages(work)
    _say("ready " + json.dumps({"ports": ports, "messages": counts, "stored": work.total + work.lanes}))
    for socket in sockets:
        socket.recv()
    _say("subscribed")
    sys.stdin.readline()
    for number, (lane, frames) in enumerate(messages):
        sockets[lane].send_multipart(frames, copy=False)
        if number % BURST == BURST - 1:
            time.sleep(PAUSE_SECONDS)
    sys.stdin.read()
    context.destroy(linger=0)


def _messages(work: Workload) -> tuple[list[tuple[int, list[bytes]]], list[int]]:
    counts, messages = [0] * work.lanes, []
    last = [
        Stored(lane, None, [10**15 + lane], np.array(last_block_ids(lane, work.block), dtype=np.uint32))
        for lane in range(work.lanes)
    ]
    for event in itertools.chain(work.events(), last):
        seq = struct.pack(">Q", counts[event.lane])
        messages.append((event.lane, [b"", seq, payload(event, work.block)]))
        counts[event.lane] += 1
    return messages, counts


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
