"""``kvsteer-router conformance`` as its users run it: a process, a publisher, a server; lines, JSON, exit status."""

from __future__ import annotations

import json

import pytest
from command import kvsteer_router
from router_stage import Stage
from watched_publisher import WIDTH, chain

from contract.events import AllBlocksCleared
from router.__main__ import main
from router.conformance.rules import RULES


@pytest.mark.parametrize(
    ("advertised", "status"), [(WIDTH, 0), (2, 1)], ids=["as advertised", "the physical page is advertised"]
)
async def test_the_command_prints_a_line_a_rule(stage: Stage, advertised: int, status: int) -> None:
    engine = await stage.engine()
    engine.publish_on(advertised_width=advertised)
    (publisher,) = engine.publishers
    publisher.publish([AllBlocksCleared(), chain(1, 2)])
    arguments = [publisher.endpoint, "--replay", str(publisher.replay_endpoint), "--server", engine.url]
    ended = await kvsteer_router("conformance", *arguments, "--seconds", "0.5")
    assert (ended.status, ended.err) == (status, "")
    lines = [line for line in ended.out.splitlines() if not line.startswith(" ")]
    assert [line[10:].split()[0] for line in lines] == list(RULES)
    assert ("events carry 6, the server advertises 2" in ended.out) == bool(status)
    ended = await kvsteer_router("conformance", *arguments, "--seconds", "0.5", "--json")
    report = json.loads(ended.out)
    assert (ended.status, report["conforms"]) == (status, not status)
    verdicts = {rule["rule"]: rule["verdict"] for rule in report["rules"]}
    assert verdicts["advertised-width"] == ("fail" if status else "pass")
    assert verdicts["restart"] == "not seen"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "tcp://HOST:PORT"),
        (["nonsense"], "nonsense"),
        (["tcp://host"], "tcp://host"),
        (["tcp://h:1", "--replay", "h:2"], "h:2"),
        (["tcp://h:1", "--seconds", "0"], "--seconds"),
        (["tcp://h:1", "--server", "ftp://x"], "ftp://x"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_one_line(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["conformance", *arguments])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.count("\n") == 1, err
    assert named in err


async def test_a_server_that_cannot_be_asked_is_said_in_one_line(stage: Stage) -> None:
    engine = await stage.engine()
    engine.publish_on()
    endpoint = engine.publishers[0].endpoint
    engine.server_info["kv_events"] = None
    ended = await kvsteer_router("conformance", endpoint, "--server", engine.url)
    assert (ended.status, ended.out) == (1, "")
    assert "kv_events is null" in ended.err
    assert ended.err.count("\n") == 1
