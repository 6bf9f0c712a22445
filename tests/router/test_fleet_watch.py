"""The watch over replicas: how it ends."""

from __future__ import annotations

import asyncio

import pytest
from skipping_loop import SkippingLoop

from router.choice.speed import FleetSpeed
from router.fleet.breaker import Breaker
from router.fleet.fleet import Fleet
from router.fleet.health import Failure
from router.fleet.identity import Identity
from router.fleet.lane import Lane
from router.fleet.prober import ProbeError, Prober
from router.fleet.replica import Replica

URL = "http://127.0.0.1:9"


class NobodyThere(Prober):
    """Finds no engine anywhere, and asks nobody."""

    def __init__(self) -> None: ...

    async def identify(self, url: str) -> Identity:
        raise ProbeError(Failure.UNREACHABLE, "nobody listens")


def no_lane(*_: object) -> Lane:
    raise AssertionError("nobody is there, so there are no lanes")


async def take_out(turns: int) -> None:
    def replica(url: str) -> Replica:
        return Replica(url, speed=FleetSpeed().replica(), breaker=Breaker(pause=1.0), make_lane=no_lane)

    fleet = Fleet([URL], make_replica=replica, prober=NobodyThere(), interval=3600.0)
    fleet.start()
    await asyncio.sleep(1.0)  # the first look is over, and the pause behind it
    fleet.report(URL, Failure.UNREACHABLE)
    for _ in range(turns):
        await asyncio.sleep(0)
    await fleet.remove(URL)
    assert not fleet.replicas


@pytest.mark.parametrize("turns", range(5))
def test_a_replica_is_taken_out_however_far_an_urgent_look_at_it_has_come(turns: int) -> None:
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(asyncio.wait_for(take_out(turns), 60.0))
