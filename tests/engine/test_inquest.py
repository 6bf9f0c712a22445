"""Who is blamed for the end of a world, whatever order the evidence comes in."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from engine.parallel.inquest import Inquest
from engine.parallel.messages import Failure

NAMES = ["rank 0 (pid 10)", "rank 1 (pid 11)", "rank 2 (pid 12)"]
Evidence = Callable[[Inquest], None]


def failed(rank: int) -> Evidence:
    return lambda inquest: inquest.failed(rank, Failure(error="E: x", trace=f"trace of {rank}", waiting=False))


def waited(rank: int) -> Evidence:
    return lambda inquest: inquest.failed(rank, Failure(error="in vain", trace="", waiting=True))


def gone(rank: int) -> Evidence:
    return lambda inquest: inquest.gone(rank, "was killed by SIGKILL")


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        ([failed(1), waited(0), gone(2)], "rank 1 (pid 11) failed: E: x"),
        ([gone(2), waited(0), waited(1)], "rank 2 (pid 12) was killed by SIGKILL"),
        ([gone(2), gone(0)], "rank 0 (pid 10) was killed by SIGKILL, rank 2 (pid 12) was killed by SIGKILL"),
        ([waited(2)], "rank 0 (pid 10), rank 1 (pid 11) did not answer: rank 2 (pid 12) waited in vain: in vain"),
        ([], "rank 0 (pid 10), rank 1 (pid 11), rank 2 (pid 12) did not answer: 3 s have passed"),
    ],
)
def test_whoever_failed_is_blamed_before_those_who_are_gone_are_silent_or_only_waited(
    evidence: list[Evidence], verdict: str
) -> None:
    for order in permutations(evidence):
        inquest = Inquest(NAMES)
        for one in order:
            one(inquest)
        assert inquest.verdict(patience=3) == verdict
        assert inquest.settled == ("did not answer" not in verdict)
        assert inquest.trace == ("trace of 1" if "failed" in verdict else None)


def test_a_rank_that_said_why_it_ends_is_not_gone_as_well() -> None:
    inquest = Inquest(NAMES)
    for one in (waited(0), gone(0), gone(1)):
        one(inquest)
    assert inquest.verdict(patience=3) == "rank 1 (pid 11) was killed by SIGKILL"


def test_a_rank_that_did_its_task_is_not_silent() -> None:
    inquest = Inquest(NAMES, answered=[0, 2])
    assert inquest.verdict(patience=3) == "rank 1 (pid 11) did not answer: 3 s have passed"


def test_ranks_that_all_only_waited_have_lost_each_other() -> None:
    inquest = Inquest(NAMES)
    for rank in (1, 0, 2):
        waited(rank)(inquest)
    assert inquest.settled
    assert inquest.verdict(patience=3) == "the ranks lost each other: rank 1 (pid 11) waited in vain: in vain"
