"""``kvsteer-router conformance``: watches somebody else's publisher for a while and prints a line per rule."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import msgspec

from router.conformance.judge import judge
from router.conformance.listener import ListenError, Target, Watch
from router.conformance.rules import Finding, Verdict
from router.conformance.server import ServerError, advertised_width

__all__ = ["ConformanceOptions", "run_conformance"]


class ConformanceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to watch, for how long, and whose advertised width to hold the events to."""

    target: Target
    server: str | None
    seconds: float
    as_json: bool


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` prints."""

    endpoint: str
    replay: str | None
    conforms: bool
    rules: Sequence[Finding]


def run_conformance(options: ConformanceOptions) -> int:
    """Print the findings; the exit status, 1 where a rule failed or nothing could be watched."""
    try:
        findings = asyncio.run(_judged(options))
    except (ListenError, ServerError) as error:
        print(f"kvsteer-router conformance: {error}", file=sys.stderr)
        return 1
    conforms = all(finding.verdict is not Verdict.FAIL for finding in findings)
    if options.as_json:
        target = options.target
        report = _Report(endpoint=target.endpoint, replay=target.replay_endpoint, conforms=conforms, rules=findings)
        print(msgspec.json.encode(report).decode())
    else:
        print("\n".join(map(_line, findings)))
    return 0 if conforms else 1


async def _judged(options: ConformanceOptions) -> list[Finding]:
    width = None if options.server is None else await advertised_width(options.server)
    return judge(await Watch(options.target).run(options.seconds), advertised_width=width)


def _line(finding: Finding) -> str:
    head = f"{finding.verdict:<8}  {finding.rule:<17} {finding.demand}"
    if finding.verdict is Verdict.FAIL:
        return f"{head}\n{'':10}{finding.failures} of {finding.seen}: {finding.evidence}"
    return f"{head} ({finding.seen})" if finding.seen else head
