from __future__ import annotations

import pytest

from contract.agreement import Agreement, agree


def test_a_value_stands_while_all_present_engines_report_it() -> None:
    assert agree({0: 4224, 1: 4224}) == Agreement(4224)


@pytest.mark.parametrize(
    ("reports", "reason"),
    [
        ({0: 4224, 1: 1056}, "engines disagree (rank 0: 4224, rank 1: 1056)"),
        ({0: 4224, 1: None}, "no value from rank 1"),
        ({}, "no engine is present"),
    ],
)
def test_otherwise_there_is_none_and_a_reason(reports: dict[int, int | None], reason: str) -> None:
    assert agree(reports) == Agreement(None, reason)


def test_the_value_comes_back_when_the_odd_engine_leaves() -> None:
    reports = {0: 4224, 1: 4224, 2: 1056}
    assert agree(reports).value is None
    del reports[2]
    assert agree(reports).value == 4224
