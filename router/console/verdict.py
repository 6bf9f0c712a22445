"""What ``check`` concludes about a replica, from a router's view of it and from probes. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import msgspec

from router.console.probe import Probed
from router.fleet.health import State
from router.front.views import LaneView, ReplicaView
from router.proof.diagnosis import NO_STREAM
from router.proof.fault import Code

__all__ = ["Finding", "LaneVerdict", "ReplicaVerdict", "Verdict", "judge"]

REALISED_SHARE = 0.5


class Verdict(enum.StrEnum):
    """From good to bad. ``at zero``: it works, and nobody finds what it holds. ``failing``: it answers no probe."""

    HEALTHY = "healthy"
    WARNING = "warning"
    AT_ZERO = "at zero"
    FAILING = "failing"
    AWAY = "away"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of the replica; a code that the router knows."""

    code: Code
    detail: str
    advice: str


class LaneVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One stream as it was seen; ``predicted`` and ``reported`` are those of the probe, in tokens."""

    dp_rank: int
    endpoint: str | None
    stream: str
    last_seq: int
    advertised_block_size: int | None
    emitted_block_size: int | None
    blocks: int
    predicted: int | None
    reported: int | None


class ReplicaVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One replica judged."""

    url: str
    verdict: Verdict
    engine: str | None
    model: str | None
    lanes: Sequence[LaneVerdict]
    findings: Sequence[Finding]
    notes: Sequence[str]

    @property
    def passed(self) -> bool:
        """Whether its hits are found."""
        return self.verdict in (Verdict.HEALTHY, Verdict.WARNING)


def judge(view: ReplicaView, *, probes: Sequence[Probed] = ()) -> ReplicaVerdict:
    """A verdict on a replica as a router sees it, and as probes showed it."""
    by_rank = {probe.dp_rank: probe for probe in probes}
    findings = list(_findings(view, probes))
    verdict = _verdict(view, findings, failing=any(probe.trouble is not None for probe in probes))
    return ReplicaVerdict(
        url=view.url,
        verdict=verdict,
        engine=view.engine,
        model=view.model,
        lanes=[_lane(lane, by_rank.get(lane.dp_rank)) for lane in view.lanes],
        findings=findings,
        notes=[view.trouble or f"it is {view.state}"] if verdict is Verdict.AWAY else list(_notes(view, probes)),
    )


def _verdict(view: ReplicaView, findings: Sequence[Finding], *, failing: bool) -> Verdict:
    if view.state is not State.HEALTHY:
        return Verdict.AWAY
    if failing:
        return Verdict.FAILING
    if any(finding.code.blinding for finding in findings):
        return Verdict.AT_ZERO
    return Verdict.WARNING if findings else Verdict.HEALTHY


def _lane(lane: LaneView, probe: Probed | None) -> LaneVerdict:
    return LaneVerdict(
        dp_rank=lane.dp_rank,
        endpoint=lane.endpoint,
        stream=lane.stream,
        last_seq=lane.last_seq,
        advertised_block_size=lane.advertised_block_size,
        emitted_block_size=lane.emitted_block_size,
        blocks=sum(lane.blocks.values()),
        predicted=None if probe is None else probe.predicted,
        reported=None if probe is None else probe.reported,
    )


def _findings(view: ReplicaView, probes: Sequence[Probed]) -> Iterator[Finding]:
    """The router's own diagnoses, what shows without traffic, and what the probes showed; each code once a lane."""
    found: set[tuple[Code, int | None]] = set()
    for fault in view.faults:
        found.add((fault.code, fault.dp_rank))
        yield Finding(code=fault.code, detail=fault.detail, advice=fault.advice)
    told = {code for code, _ in found}
    if view.state is State.HEALTHY and Code.AGREEMENT_MISSING not in told:
        for lane in view.lanes:
            if (Code.EVENTS_SILENT, lane.dp_rank) not in found and (finding := _unheard(lane)) is not None:
                found.add((Code.EVENTS_SILENT, lane.dp_rank))
                yield finding
    for probe in probes:
        finding = _probed(probe)
        if finding is not None and (finding.code, probe.dp_rank) not in found:
            yield finding


def _unheard(lane: LaneView) -> Finding | None:
    """A lane whose events cannot come: there is no stream, or nobody at its endpoint."""
    if lane.stream == NO_STREAM:
        return Finding(
            code=Code.EVENTS_SILENT,
            detail=f"rank {lane.dp_rank}: no events from this lane: {lane.reason or 'it has no event stream'}",
            advice="turn KV events on in the engine, or name its event endpoint in the --config file",
        )
    if lane.stream == "connecting":
        return Finding(
            code=Code.EVENTS_SILENT,
            detail=f"rank {lane.dp_rank}: no events from this lane: nobody listens on {lane.endpoint}",
            advice="check the port of the engine's event publisher, and that no firewall is between",
        )
    return None


def _probed(probe: Probed) -> Finding | None:
    """What a prompt that was sent twice showed."""
    if probe.trouble is not None:
        return None
    if probe.predicted:
        return _promised(probe)
    if not probe.events:
        return Finding(
            code=Code.EVENTS_SILENT,
            detail=f"rank {probe.dp_rank}: no events from this lane, although a prompt of {probe.prompt_tokens} tokens "
            "was served",
            advice="check that the engine publishes KV events where it says it does",
        )
    if probe.reported:
        return Finding(
            code=Code.HITS_NOT_PREDICTED,
            detail=f"rank {probe.dp_rank}: the engine found {probe.reported} of {probe.prompt_tokens} tokens sent for "
            "the second time and its events name none of them",
            advice="compare the token ids in its events with the prompt, and the block size with the descriptor's",
        )
    return Finding(
        code=Code.HITS_NOT_REALISED,
        detail=f"rank {probe.dp_rank}: a prompt of {probe.prompt_tokens} tokens was sent twice; neither events nor the "
        "engine's report know of it",
        advice="check that prefix caching is on, and that the prompt is longer than a block",
    )


def _promised(probe: Probed) -> Finding | None:
    if probe.reported is None:
        return Finding(
            code=Code.REPORTS_MISSING,
            detail=f"rank {probe.dp_rank}: {probe.predicted} tokens are predicted, and the engine says nothing of "
            "cached tokens",
            advice="SGLang: --enable-cache-report; vLLM: --enable-prompt-tokens-details",
        )
    if probe.reported >= REALISED_SHARE * (probe.predicted or 0):
        return None
    return Finding(
        code=Code.HITS_NOT_REALISED,
        detail=f"rank {probe.dp_rank}: of {probe.predicted} tokens predicted the engine found {probe.reported} cached",
        advice="look at the other findings first; then see whether another replica answers behind this address",
    )


def _notes(view: ReplicaView, probes: Sequence[Probed]) -> Iterator[str]:
    for probe in probes:
        if probe.trouble is not None:
            yield f"rank {probe.dp_rank}: the probe failed: {probe.trouble}"
    if not probes and any(lane.last_seq < 0 and lane.endpoint for lane in view.lanes):
        yield "no event seen: it may be idle; --probe sends prompts to see"
