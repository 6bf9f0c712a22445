"""Child processes are awaited, watched, stopped, and never outlive whoever started them."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from bench.children import ChildError, ChildGroup

READY = "import time; print('toy ready http://127.0.0.1:{}', flush=True); "
SLEEP = "time.sleep(60)"
MARK = "toy ready "


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


async def until_gone(pid_file: int) -> None:
    """Wait until a process that is not our child, and so cannot be awaited, has ended."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(pid_file, ended.set)
    try:
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(pid_file)
        os.close(pid_file)


def stand_still_until_dead(pid: int) -> None:
    """The loop learns nothing meanwhile."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


async def test_a_child_is_awaited_until_it_has_announced_every_url(tmp_path: Path) -> None:
    two = READY.format(1) + READY.format(2)
    async with ChildGroup(tmp_path) as children:
        child = await children.start("toy", python(two + SLEEP), ready_mark=MARK, ready_count=2)
        assert child.urls == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    assert child.process.returncode == -signal.SIGTERM


async def test_a_child_that_ends_before_it_is_ready_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    async with ChildGroup(tmp_path) as children:
        with pytest.raises(ChildError, match=r"toy ended with status 3; its output ends:\n    cannot go on"):
            await children.start("toy", python("import sys; print('cannot go on'); sys.exit(3)"), ready_mark=MARK)


async def test_a_child_that_never_becomes_ready_is_given_up(tmp_path: Path) -> None:
    async with ChildGroup(tmp_path) as children:
        with pytest.raises(ChildError, match=r"toy was not ready after 0\.2 s"):
            await children.start("toy", python("import time; " + SLEEP), ready_mark=MARK, seconds=0.2)


async def test_a_child_that_does_not_say_when_it_is_ready_may_say_anything(tmp_path: Path) -> None:
    async with ChildGroup(tmp_path) as children:
        child = await children.launch("toy", python("print('\\n\\n \\nnothing of use')"))
        with pytest.raises(ChildError, match=r"(?s)toy ended with status 0; its output ends:.*nothing of use"):
            await children.supervise(asyncio.Event().wait())
        assert child.urls == []


async def test_work_is_cancelled_when_a_child_dies_under_it(tmp_path: Path) -> None:
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with ChildGroup(tmp_path) as children:
        child = await children.start("toy", python(READY.format(1) + SLEEP), ready_mark=MARK)
        child.process.kill()
        with pytest.raises(ChildError, match="toy ended with signal 9"):
            await children.supervise(work())
    assert cancelled.is_set()


async def test_a_death_explains_the_error_it_caused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the loop had no time yet to hear of it."""
    monkeypatch.setattr("bench.children.NOTICE_SECONDS", 0.0)
    async with ChildGroup(tmp_path) as children:
        child = await children.start("toy", python(READY.format(1) + SLEEP), ready_mark=MARK)

        async def work() -> None:
            child.process.kill()
            stand_still_until_dead(child.process.pid)
            raise ConnectionError("connection lost")

        with pytest.raises(ChildError, match="toy ended with signal 9"):
            await children.supervise(work())


async def test_work_that_ends_first_returns_its_result_and_its_own_errors(tmp_path: Path) -> None:
    async def fail() -> None:
        raise LookupError("own error")

    async with ChildGroup(tmp_path) as children:
        child = await children.start("toy", python(READY.format(1) + SLEEP), ready_mark=MARK)
        assert await children.supervise(asyncio.sleep(0, "done")) == "done"
        with pytest.raises(LookupError, match="own error"):
            await children.supervise(fail())
        await children.stop(child)
        assert await children.supervise(asyncio.sleep(0, "after a stop")) == "after a stop"


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.children.STOP_SECONDS", 0.2)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    async with ChildGroup(tmp_path) as children:
        child = await children.start("toy", python(deaf + READY.format(1) + SLEEP), ready_mark=MARK)
    assert child.process.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="the tie to the parent is Linux's")
async def test_a_child_dies_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    parent_code = f"""
import asyncio, pathlib, sys
from bench.children import ChildGroup
async def main():
    async with ChildGroup(pathlib.Path({str(tmp_path)!r})) as children:
        code = {READY.format(1) + SLEEP!r}
        child = await children.start("toy", [sys.executable, "-c", code], ready_mark={MARK!r})
        print("parent ready", child.process.pid, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(*python(parent_code), stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    grandchild = os.pidfd_open(int((await parent.stdout.readline()).split()[-1]))
    parent.kill()
    await parent.wait()
    await until_gone(grandchild)
