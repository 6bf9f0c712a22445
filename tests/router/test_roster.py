"""Who may be sent a request, kept up by changes: the same as a look at every replica finds."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from contract.descriptor import LaneAddress
from router.choice.cut import Cut
from router.choice.load import LaneLoad
from router.choice.pool import Pool
from router.choice.recent import RecentPrompts
from router.choice.speed import FleetSpeed, ReplicaSpeed
from router.fleet.breaker import FAILURES_TO_OPEN, Breaker
from router.fleet.health import Failure
from router.fleet.identity import Engine, Identity, Model
from router.fleet.lane import Lane
from router.fleet.replica import Replica
from router.fleet.roster import MAX_MODELS, Roster
from router.intake.index import BlockIndex, LaneHandle
from router.intake.subscriber import Subscriber

PAUSE = 3.0
NAMES = ("small", "large", "small:adapter")


def no_subscriber(address: LaneAddress, topic: str, handle: LaneHandle) -> Subscriber:
    pytest.fail(f"no replica here has a stream, {address} is asked for")


def identity(*models: str, ranks: int = 1, block_size: int = 6, vocabulary: int | None = None) -> Identity:
    return Identity(
        engine=Engine.SGLANG,
        version=None,
        models=tuple(Model(id=name) for name in models),
        tokenizer=None,
        vocab_size=vocabulary,
        dp_size=ranks,
        block_size=block_size,
        streams=(),
    )


class Scene:
    """Replicas of one roster, at a time that only the test moves."""

    def __init__(self) -> None:
        self.roster, self.index, self.speed = Roster(), BlockIndex(), FleetSpeed()
        self.replicas: list[Replica] = []
        self.now = 0.0

    def _lane(self, url: str, rank: int, speed: ReplicaSpeed) -> Lane:
        return Lane(
            url=url,
            dp_rank=rank,
            index=self.index,
            speed=speed,
            load=LaneLoad(),
            recent=RecentPrompts(),
            subscribe=no_subscriber,
        )

    def add(self, found: Identity | None = None) -> Replica:
        url = f"http://replica-{len(self.replicas)}"
        breaker = Breaker(pause=PAUSE)
        replica = Replica(url, speed=self.speed.replica(), breaker=breaker, make_lane=self._lane)
        self.replicas.append(replica)
        self.roster.enter(replica)
        replica.when_changed = self.roster.update
        if found is not None:
            self.look(replica, found)
        return replica

    def look(self, replica: Replica, found: Identity, *, anew: bool = False) -> None:
        asyncio.run(replica.adopt(found, anew=anew))
        replica.health.succeeded()
        self.roster.update(replica)

    def lanes(self, model: str | None) -> list[Lane]:
        return list(self.roster.served(model, now=self.now).lanes)


class RosterMachine(RuleBasedStateMachine):
    """Replicas come, are looked at, fail, and go."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene()

    @precondition(lambda self: len(self.scene.replicas) < 5)
    @rule()
    def come(self) -> None:
        self.scene.add()

    @precondition(lambda self: self.scene.replicas)
    @rule(
        data=st.data(),
        models=st.lists(st.sampled_from(NAMES), max_size=2),
        ranks=st.integers(1, 3),
        block_size=st.sampled_from([6, 6, 12]),
        anew=st.booleans(),
    )
    def look(self, data: st.DataObject, models: list[str], ranks: int, block_size: int, anew: bool) -> None:
        found = identity(*models, ranks=ranks, block_size=block_size)
        self.scene.look(data.draw(st.sampled_from(self.scene.replicas)), found, anew=anew)

    @precondition(lambda self: self.scene.replicas)
    @rule(data=st.data(), probes=st.integers(1, 3))
    def fall_ill(self, data: st.DataObject, probes: int) -> None:
        replica = data.draw(st.sampled_from(self.scene.replicas))
        for _ in range(probes):
            replica.health.failed(Failure.ILL)
        self.scene.roster.update(replica)

    @precondition(lambda self: self.scene.replicas)
    @rule(data=st.data(), answers=st.sampled_from([(False, FAILURES_TO_OPEN), (False, 1), (True, 1)]))
    def answer(self, data: st.DataObject, answers: tuple[bool, int]) -> None:
        breaker, (well, count) = data.draw(st.sampled_from(self.scene.replicas)).breaker, answers
        breaker.sent(now=self.scene.now)
        for _ in range(count):
            if well:
                breaker.succeeded()
            else:
                breaker.failed(now=self.scene.now)

    @rule(seconds=st.sampled_from([0.5, PAUSE]))
    def wait(self, seconds: float) -> None:
        self.scene.now += seconds

    @precondition(lambda self: self.scene.replicas)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        replica = data.draw(st.sampled_from(self.scene.replicas))
        self.scene.replicas.remove(replica)
        self.scene.roster.leave(replica)

    @invariant()
    def the_same_as_a_look_at_every_replica_finds(self) -> None:
        now = self.scene.now
        for model in (None, *NAMES, "nobody's"):
            may = [
                replica
                for replica in self.scene.replicas
                if replica.healthy and replica.serves(model) and replica.breaker.admits(now=now)
            ]
            lanes = self.scene.lanes(model)
            assert len(lanes) == len(set(lanes))
            assert set(lanes) == {lane for replica in may for lane in replica.lanes}
            assert {source.url for source in self.scene.roster.served(model, now=now).tokenizers} == {
                replica.url for replica in may
            }


RosterMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
test_roster = RosterMachine.TestCase


def test_the_vocabulary_is_the_largest_where_all_say_how_large_theirs_is() -> None:
    scene = Scene()
    scene.add(identity("small", vocabulary=100))
    assert scene.roster.served(None, now=0.0).vocabulary == 100
    second = scene.add(identity("small", vocabulary=300))
    assert scene.roster.served(None, now=0.0).vocabulary == 300
    scene.look(second, identity("small"))
    assert scene.roster.served(None, now=0.0).vocabulary is None


def test_a_lane_with_another_engine_behind_it_is_found_by_its_new_handle() -> None:
    scene = Scene()
    replica, cut = scene.add(identity("small")), Cut(at_most=16, burden=LaneLoad.waiting_tokens)
    pool, lane = scene.roster.served("small", now=0.0).lanes, replica.lanes[0]
    assert isinstance(pool, Pool)
    order, before = pool.order(cut, now=0.0), lane.handle
    scene.look(replica, identity("small"), anew=True)
    assert lane.handle != before
    assert (order.of([before], 0.0), order.of([lane.handle], 0.0)) == ([], [(0.0, lane)])


def test_names_that_are_asked_for_are_kept_within_bounds() -> None:
    """What a name's pool keeps up costs each change a look; the books are told when it is not kept any more."""
    scene = Scene()
    replica = scene.add(identity(*(f"model-{number}" for number in range(MAX_MODELS + 1))))
    first = scene.roster.served("model-0", now=0.0)
    for number in range(1, MAX_MODELS + 1):
        assert scene.roster.served(f"model-{number}", now=0.0)
    assert scene.roster.served("model-0", now=0.0) is not first
    assert scene.roster.served("model-0", now=0.0).first is replica
