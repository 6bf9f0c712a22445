"""What several workers are made of: when they are started again, how their views become one, how they hold a port."""

from __future__ import annotations

import socket

import pytest
from patience import in_time
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.parser import text_string_to_metric_families

from router.config import ConfigError, RouterConfig
from router.fleet.health import State
from router.front.families import decode_families, encode_families, exposition_of_all
from router.front.merged import merged_fleet
from router.front.receipts import worker_of
from router.front.server import BindError
from router.front.views import FleetView, HitRate, LaneView, ReplicaView, RequestCounts, TokenSums
from router.proof.fault import Code, Sighting
from router.proof.tally import WindowSums
from router.workers import restarts, slot
from router.workers.messages import FleetIs, Hello, Listening, Wanted, decode_line, encode_line
from router.workers.recordings import own_trace
from router.workers.reservation import reserved_port
from router.workers.restarts import DEATHS_TO_GIVE_UP, LIVED_SECONDS, LONGEST_PAUSE, Restarts
from router.workers.slot import Slot, WorkerLostError

CONFIG = RouterConfig(replicas=("http://a:1",), api_keys=("k",))


def test_a_worker_that_keeps_dying_is_started_later_and_later_and_then_not_at_all() -> None:
    row = Restarts()
    pauses = [row.pause(lived=0.0) for _ in range(DEATHS_TO_GIVE_UP)]
    assert pauses[-1] is None
    told = [pause for pause in pauses if pause is not None]
    assert told == sorted(told)
    assert 0 < told[0] < told[-1] <= LONGEST_PAUSE


def test_a_worker_that_lived_long_begins_a_new_row_of_deaths() -> None:
    row = Restarts()
    first = row.pause(lived=0.0)
    for _ in range(3 * DEATHS_TO_GIVE_UP):
        assert row.pause(lived=LIVED_SECONDS) == first


async def test_a_place_whose_worker_cannot_live_is_given_up_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "WORKER_MODULE", "no.such.module")
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 1e-6)
    place = Slot(
        3,
        hello=lambda rejoins: Hello(config=CONFIG, place=3, sockets="/nowhere", rejoins=rejoins),
        more=lambda: encode_line(FleetIs(())),
        told=lambda _, message: pytest.fail(f"nobody is there to say {message}"),
    )
    with pytest.raises(
        WorkerLostError, match=rf"worker 3 \(pid \d+\) ended with status 1 .* {DEATHS_TO_GIVE_UP} deaths"
    ):
        await in_time(place.keep())


@pytest.mark.parametrize(
    "message",
    [
        Hello(config=CONFIG, place=1, sockets="/s", rejoins=True),
        FleetIs(("http://a:1", "http://b:2")),
        Listening("http://127.0.0.1:80"),
        Wanted("http://a:1", present=False),
    ],
)
def test_messages_survive_their_line(message: Hello | FleetIs | Listening | Wanted) -> None:
    line = encode_line(message)
    assert line.count(b"\n") == 1
    assert decode_line(line) == message


@pytest.mark.parametrize("number", [0, 257])
def test_a_router_has_a_sensible_number_of_workers(number: int) -> None:
    with pytest.raises(ConfigError, match=rf"workers .*{number}"):
        RouterConfig(replicas=("http://a:1",), workers=number)


@pytest.mark.parametrize(
    ("trace_out", "own"),
    [("", ""), ("a/fleet.kvtrace", "a/fleet.1.kvtrace"), ("fleet", "fleet.1"), ("a.b/x.y.z", "a.b/x.y.1.z")],
)
def test_each_worker_has_a_trace_of_its_own(trace_out: str, own: str) -> None:
    assert own_trace(trace_out, 1) == own


def test_an_id_tells_its_worker_and_one_of_a_single_router_tells_none() -> None:
    assert worker_of("12-0123456789ab-7") == 12
    assert [worker_of(other) for other in ("0123456789ab-7", "1-x-7", "", "1-0123456789ab-7/..")] == [None] * 4


def test_a_held_port_is_taken_for_others_and_free_for_workers() -> None:
    with reserved_port("127.0.0.1", 0) as port:
        with pytest.raises(BindError, match=str(port)), reserved_port("127.0.0.1", port):
            pytest.fail("it was held twice")
        for _ in range(2):
            with socket.socket() as worker:
                worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                worker.bind(("127.0.0.1", port))
                worker.listen()
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", port))


def counted(value: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("kvsteer_things", "Things.", ("kind",), registry=registry).labels("x").inc(value)
    Histogram("kvsteer_seconds", "Seconds.", buckets=(1.0, 2.0), registry=registry).observe(value)
    return registry


def test_every_workers_samples_stand_in_one_family_each_with_its_worker() -> None:
    told = {place: decode_families(encode_families(counted(place))) for place in (1, 2)}
    families = {
        family.name: family for family in text_string_to_metric_families(exposition_of_all({**told, 3: None}).decode())
    }
    things = [
        (sample.labels, sample.value) for sample in families["kvsteer_things"].samples if sample.name.endswith("_total")
    ]
    assert things == [({"kind": "x", "worker": "1"}, 1.0), ({"kind": "x", "worker": "2"}, 2.0)]
    assert families["kvsteer_seconds"].type == "histogram"
    up = {sample.labels["worker"]: sample.value for sample in families["kvsteer_worker_up"].samples}
    assert up == {"1": 1.0, "2": 1.0, "3": 0.0}


def replica(
    url: str, *, routed: int, prompt: int, hit: int, reports: bool = True, faults: tuple[Sighting, ...] = ()
) -> ReplicaView:
    window = WindowSums(requests=routed, prompt=prompt, predicted_hit=hit, reported_hit=hit, difference=0)
    lane = LaneView(
        dp_rank=0, endpoint=None, stream="live", reason=None, last_seq=7, known_from=0, gaps=0, lost=0, replayed=0,
        advertised_block_size=6, emitted_block_size=6, blocks={"GPU": 40}, event_age=None, in_flight=routed,
        queued_tokens=prompt, window=window,
    )  # fmt: skip
    rate = hit / prompt if prompt else None
    return ReplicaView(
        url=url,
        state=State.HEALTHY,
        engine="sglang",
        model="m",
        trouble=None,
        hit_rate=HitRate(predicted=rate, reported=rate if reports else None),
        tokens=TokenSums(prompt=prompt, predicted_hit=hit, reported_hit=hit),
        requests=RequestCounts(routed=routed, in_flight=routed),
        lanes=[lane],
        faults=list(faults),
    )


def sighting(first_seen: float) -> Sighting:
    return Sighting(
        code=Code.EVENTS_SILENT, dp_rank=0, detail="d", evidence={}, advice="a", first_seen=first_seen, last_seen=9.0
    )


def test_what_workers_count_is_added_up_and_what_they_all_see_is_not() -> None:
    own = FleetView([replica("http://a", routed=2, prompt=10, hit=5, reports=False, faults=(sighting(4.0),))])
    other = FleetView(
        [
            replica("http://b", routed=100, prompt=100, hit=100),
            replica("http://a", routed=3, prompt=30, hit=5, faults=(sighting(2.0),)),
        ]
    )
    (seen,) = merged_fleet(own, [other]).replicas
    assert seen.requests == RequestCounts(routed=5, in_flight=5)
    assert seen.tokens == TokenSums(prompt=40, predicted_hit=10, reported_hit=10)
    assert seen.hit_rate == HitRate(predicted=0.25, reported=0.25)
    (lane,) = seen.lanes
    assert (lane.in_flight, lane.queued_tokens, lane.window.prompt) == (5, 40, 40)
    assert (lane.blocks, lane.last_seq) == ({"GPU": 40}, 7)
    assert [fault.first_seen for fault in seen.faults] == [2.0]


def test_one_view_alone_stays_as_it_is() -> None:
    own = FleetView([replica("http://a", routed=2, prompt=10, hit=5)])
    assert merged_fleet(own, []) == own
