"""Life of a replica: what a failure changes, and what one success does."""

from __future__ import annotations

from router.fleet.health import Failure, Health, State


def healthy() -> Health:
    health = Health()
    health.succeeded()
    return health


def test_a_replica_that_was_never_seen_is_starting_however_often_it_fails() -> None:
    health = Health()
    assert (health.state, health.probed) == (State.STARTING, False)
    for _ in range(9):
        health.failed(Failure.UNREACHABLE)
    assert (health.state, health.probed) == (State.STARTING, True)
    health.succeeded()
    assert health.state is State.HEALTHY


def test_one_failed_probe_of_a_busy_replica_changes_nothing() -> None:
    """H12."""
    for failure in Failure:
        health = healthy()
        health.failed(failure)
        assert health.state is State.HEALTHY
        health.succeeded()
        health.failed(failure)
        assert health.state is State.HEALTHY


def test_three_failures_in_a_row_make_it_unhealthy_and_one_success_heals() -> None:
    health = healthy()
    for _ in range(3):
        health.failed(Failure.ILL)
    assert health.state is State.UNHEALTHY
    assert not health.broken
    health.succeeded()
    assert health.state is State.HEALTHY


def test_two_refused_connections_in_a_row_mean_it_is_gone() -> None:
    health = healthy()
    health.failed(Failure.UNREACHABLE)
    health.failed(Failure.ILL)
    health.failed(Failure.UNREACHABLE)
    assert health.state is State.UNHEALTHY
    health.failed(Failure.UNREACHABLE)
    assert health.state is State.GONE
    health.failed(Failure.ILL)
    assert health.state is State.GONE


def test_a_refused_connection_is_remembered_until_the_next_success() -> None:
    """What answers then may be another process."""
    health = healthy()
    health.failed(Failure.UNREACHABLE)
    health.failed(Failure.ILL)
    assert health.broken
    health.succeeded()
    assert not health.broken
