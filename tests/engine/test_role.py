"""What a process is among rank processes, by its flags and by torchrun's variables."""

from __future__ import annotations

import pytest

from engine.config import ConfigError, EngineConfig
from engine.parallel.role import Follower, Head, Launcher, NodePlan, role_of
from engine.parallel.seat import Cluster, Meeting, Seat, SeatError, as_environment, torchrun_seat

TORCHRUN = {
    "RANK": "0",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
AGENT = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "1"}
MEETING = Meeting(host="10.0.0.1", port=29500)
TWO = {"nnodes": 2, "dist_init_addr": "10.0.0.1:29500", "tp_size": 4, "dcp_size": 2}


def test_one_machine_and_no_launcher_is_an_engine_that_starts_its_ranks() -> None:
    assert role_of(NodePlan(), size=4, environ={}) == Head()


def test_torchruns_rank_0_serves_and_the_others_follow() -> None:
    head = role_of(NodePlan(), size=4, environ=TORCHRUN | AGENT)
    served = Meeting(host="10.0.0.1", port=29500, served=True, attempt="1")
    assert head == Head(Cluster(started_here=1, local_size=2, meeting=served), launched=True)
    follower = role_of(NodePlan(), size=4, environ=TORCHRUN | {"RANK": "3", "LOCAL_RANK": "1"})
    assert follower == Follower(seat=Seat(rank=3, size=4, local_rank=1, local_size=2), meeting=MEETING)


def test_node_0_serves_and_starts_its_share_and_the_others_launch_theirs() -> None:
    first = role_of(NodePlan(nodes=2, address="10.0.0.1:29500"), size=4, environ={})
    assert first == Head(Cluster(started_here=2, local_size=2, meeting=MEETING))
    second = role_of(NodePlan(nodes=2, node=1, address="10.0.0.1:29500"), size=4, environ={})
    seats = [Seat(rank=rank, size=4, local_rank=rank - 2, local_size=2) for rank in (2, 3)]
    assert second == Launcher(seats=seats, meeting=MEETING)
    launched = as_environment(seats[1], MEETING)
    assert torchrun_seat(launched) == (seats[1], MEETING)
    assert role_of(NodePlan(nodes=2, node=1, address="10.0.0.1:29500"), size=4, environ=launched) == Follower(
        seat=seats[1], meeting=MEETING
    )


def test_an_ipv6_address_of_the_meeting_loses_its_brackets() -> None:
    assert NodePlan(nodes=2, address="[fd00::1]:29500").meeting == Meeting(host="fd00::1", port=29500)


def test_one_rank_under_torchrun_needs_nobody() -> None:
    assert role_of(NodePlan(), size=1, environ=TORCHRUN | {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}) == Head()


@pytest.mark.parametrize(
    ("environ", "complaint"),
    [
        (TORCHRUN, r"torchrun started 4 ranks \(WORLD_SIZE\), tp_size is 2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "the environment has RANK and WORLD_SIZE, .* no LOCAL_RANK, LOCAL_WORLD_"),
        (TORCHRUN | {"RANK": "first"}, "a variable of torchrun's is no number: .*'first'"),
    ],
)
def test_a_torchrun_that_does_not_fit_is_refused_in_one_line(environ: dict[str, str], complaint: str) -> None:
    with pytest.raises(SeatError, match=f"^{complaint}"):
        role_of(NodePlan(), size=2, environ=environ)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"nnodes": 0}, "nnodes must be at least 1, got 0"),
        ({"node_rank": 1}, r"node_rank 1 is not in \[0, 1\), nnodes is 1"),
        (TWO | {"node_rank": -1}, r"node_rank -1 is not in \[0, 2\), nnodes is 2"),
        (TWO | {"tp_size": 3, "dcp_size": 3}, "tp_size 3 ranks do not divide over 2 nodes"),
        (TWO | {"dist_init_addr": None}, "nnodes 2 needs dist_init_addr, the HOST:PORT of node 0"),
        (TWO | {"dist_init_addr": "10.0.0.1"}, "dist_init_addr: 'tcp://10.0.0.1' is not"),
        (TWO | {"dist_init_addr": "10.0.0.1:0"}, "dist_init_addr '10.0.0.1:0' needs a port that all nodes know, not 0"),
        (TWO | {"dp_size": 2}, "ranks of several launchers make one engine, got dp_size 2 and replicas 1"),
        (TWO | {"replicas": 3}, "ranks of several launchers make one engine, got dp_size 1 and replicas 3"),
        (TWO | {"rank_backend": "threads"}, "ranks of several launchers are processes .* got rank_backend threads"),
        (TWO | {"model_path": "sim"}, "ranks of several launchers .* and model_path sim"),
        ({"rank_timeout": 0.0}, "rank_timeout must be more than 0 seconds, got 0.0"),
    ],
)
def test_flags_that_lay_out_no_nodes_are_refused_in_one_line(flags: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"^{complaint}"):
        EngineConfig(**flags)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flags", "processes"),
    [
        ({"tp_size": 2}, False),
        ({"tp_size": 2, "rank_backend": "processes"}, True),
        ({"tp_size": 1, "rank_backend": "processes"}, True),
        ({"tp_size": 2, "rank_backend": "threads"}, False),
        ({"model_path": "sim", "rank_backend": "processes"}, False),
        (TWO, True),
    ],
)
def test_ranks_are_threads_for_built_in_models_unless_told_otherwise(flags: dict[str, object], processes: bool) -> None:
    assert EngineConfig(**flags).has_rank_processes == processes  # type: ignore[arg-type]
