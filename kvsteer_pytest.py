"""The pytest plugin: a fixture that plays a ``.kvtrace``, for tests of any engine whose events were recorded.

    def test_hits_are_found(kvtrace):
        trace = kvtrace("two-turns.kvtrace")
        trace.check()
        assert trace.requests[-1].reported == trace.requests[-1].routed.predicted

A module with a name of its own beside the packages: pytest imports it in every run, also in projects that have a
package ``router`` themselves. It needs ours only once a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from router.trace.played_trace import PlayedTrace

__all__ = ["kvtrace"]


@pytest.fixture
def kvtrace(request: pytest.FixtureRequest) -> Callable[..., PlayedTrace]:
    """Plays the trace at a path, which is looked for beside the test first, then where pytest was started.

    Whole, unless ``whole=False``: then ``step()`` and ``steps()`` play it record by record.
    """
    from router.trace.played_trace import PlayedTrace

    def play(path: str | Path, *, whole: bool = True) -> PlayedTrace:
        trace = PlayedTrace(_found(request, Path(path)))
        return trace.run() if whole else trace

    return play


def _found(request: pytest.FixtureRequest, path: Path) -> Path:
    beside = request.path.parent / path
    return beside if beside.exists() else path
