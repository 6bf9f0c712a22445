"""A warning that repeats is said once a minute."""

from __future__ import annotations

import logging

import pytest

from publisher.complaint import PERIOD_SECONDS, Complaint


def test_a_repeated_warning_waits_for_its_period(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    complain = Complaint(logging.getLogger("test"), "%d so far", clock=lambda: now)
    complain(1)
    now = PERIOD_SECONDS / 2
    complain(2)
    now = PERIOD_SECONDS
    complain(3)
    assert [record.getMessage() for record in caplog.records] == ["1 so far", "3 so far"]
