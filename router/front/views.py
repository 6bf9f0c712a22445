"""What ``/replicas``, ``/explain``, ``/index`` and ``/v1/models`` show, as values read off the fleet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from contract.events import Tier
from router.choice.chooser import Considered, Decision
from router.fleet.health import State
from router.fleet.identity import Model
from router.fleet.lane import Lane
from router.fleet.replica import Replica
from router.intake.index import BlockIndex
from router.proof.diagnosis import NO_STREAM
from router.proof.fault import Sighting
from router.proof.tally import WindowSums

__all__ = [
    "Chosen",
    "ExplainedLane",
    "Explanation",
    "FleetView",
    "ModelList",
    "explanation",
    "fleet_view",
    "model_list",
    "rate",
    "replica_view",
]


class HitRate(msgspec.Struct, frozen=True):
    """Tokens over tokens; None before there are any (``reported``: before the engine has ever said)."""

    predicted: float | None
    reported: float | None


class TokenSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over finished requests."""

    prompt: int
    predicted_hit: int
    reported_hit: int


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Requests sent to a replica, and those of them that have not ended."""

    routed: int
    in_flight: int


class LaneView(msgspec.Struct, frozen=True, kw_only=True):
    """One event stream, and what was promised and found there.

    Block sizes are block widths. ``last_seq`` is -1 before the first batch, ``known_from`` the first batch of the
    history behind what is held (0: all of it, null: none yet); ``event_age`` is seconds since the last.
    ``reason`` says why there is no stream, or why it is not trusted.
    """

    dp_rank: int
    endpoint: str | None
    stream: str
    reason: str | None
    last_seq: int
    known_from: int | None
    gaps: int
    lost: int
    replayed: int
    advertised_block_size: int | None
    emitted_block_size: int | None
    blocks: Mapping[str, int]
    event_age: float | None
    in_flight: int
    queued_tokens: int
    window: WindowSums


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """One replica. ``model`` is the first of the models it serves; ``trouble`` is why the last probe failed."""

    url: str
    state: State
    engine: str | None
    model: str | None
    trouble: str | None
    hit_rate: HitRate
    tokens: TokenSums
    requests: RequestCounts
    lanes: Sequence[LaneView]
    faults: Sequence[Sighting]


class FleetView(msgspec.Struct, frozen=True):
    """The answer of ``/replicas``."""

    replicas: Sequence[ReplicaView]


class Chosen(msgspec.Struct, frozen=True):
    """The lane a request would go to."""

    url: str
    dp_rank: int


class ExplainedLane(msgspec.Struct, frozen=True, kw_only=True):
    """A lane as it was judged. ``matched_tokens`` is the predicted hit, ``tiers`` where those tokens lie.

    ``pending_tokens`` more belong to a prompt that was just sent there.
    """

    url: str
    dp_rank: int
    block_size: int | None
    prompt_tokens: int
    matched_tokens: int
    pending_tokens: int
    tiers: Mapping[str, int]
    cost: float
    terms: Mapping[str, float]


class Explanation(msgspec.Struct, frozen=True):
    """The answer of ``/explain``."""

    chosen: Chosen
    lanes: Sequence[ExplainedLane]


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's model object, with vLLM's and SGLang's additions."""

    id: str
    object: str = "model"
    created: int
    owned_by: str
    root: str | None
    parent: str | None
    max_model_len: int | None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/v1/models``."""

    object: str = "list"
    data: Sequence[ModelCard]


Review = Callable[[Replica], Sequence[Sighting]]


def fleet_view(replicas: Iterable[Replica], index: BlockIndex, *, review: Review, now: float) -> FleetView:
    """Every replica as it stands; ``review`` tells its faults, ``now`` is seconds since the epoch."""
    return FleetView([replica_view(replica, index, faults=review(replica), now=now) for replica in replicas])


def replica_view(replica: Replica, index: BlockIndex, *, faults: Sequence[Sighting], now: float) -> ReplicaView:
    """One replica as it stands."""
    identity, tallies = replica.identity, [lane.tally for lane in replica.lanes]
    tokens = TokenSums(
        prompt=sum(tally.prompt_tokens for tally in tallies),
        predicted_hit=sum(tally.predicted for tally in tallies),
        reported_hit=sum(tally.reported for tally in tallies),
    )
    reports = any(tally.ever_reported for tally in tallies)
    return ReplicaView(
        url=replica.url,
        state=replica.health.state,
        engine=None if identity is None else identity.engine,
        model=None if identity is None else identity.models[0].id,
        trouble=replica.trouble,
        hit_rate=HitRate(
            predicted=rate(tokens.predicted_hit, tokens.prompt),
            reported=rate(tokens.reported_hit, tokens.prompt) if reports else None,
        ),
        tokens=tokens,
        requests=RequestCounts(
            routed=sum(tally.routed for tally in tallies),
            in_flight=sum(lane.load.in_flight for lane in replica.lanes),
        ),
        lanes=[_lane_view(lane, index, now=now) for lane in replica.lanes],
        faults=faults,
    )


def rate(part: int, whole: int) -> float | None:
    """A share; None of nothing."""
    return part / whole if whole else None


def _lane_view(lane: Lane, index: BlockIndex, *, now: float) -> LaneView:
    stats, status = index.stats(lane.handle), lane.status
    last = None if status is None else status.last_event_time
    return LaneView(
        dp_rank=lane.dp_rank,
        endpoint=None if lane.stream is None else lane.stream.address.endpoint,
        stream=NO_STREAM if status is None else status.state,
        reason=lane.no_events if status is None else status.reason,
        last_seq=-1 if status is None else status.last_seq,
        known_from=None if status is None else status.known_from,
        gaps=0 if status is None else status.gaps,
        lost=0 if status is None else status.lost,
        replayed=0 if status is None else status.replayed,
        advertised_block_size=lane.advertised_block_size,
        emitted_block_size=stats.emitted_width,
        blocks={Tier.GPU.value: 0, **stats.blocks},
        event_age=None if last is None else round(max(0.0, now - last), 3),
        in_flight=lane.load.in_flight,
        queued_tokens=lane.load.queued_tokens,
        window=lane.tally.window_sums,
    )


def explanation(decision: Decision[Lane]) -> Explanation:
    """A decision with its reasons."""
    chosen = decision.chosen.lane
    lanes = [_explained(considered, decision.prompt_tokens) for considered in decision.considered]
    return Explanation(Chosen(chosen.url, chosen.dp_rank), lanes)


def _explained(considered: Considered[Lane], prompt_tokens: int) -> ExplainedLane:
    return ExplainedLane(
        url=considered.lane.url,
        dp_rank=considered.lane.dp_rank,
        block_size=considered.width,
        prompt_tokens=prompt_tokens,
        matched_tokens=considered.matched_tokens,
        pending_tokens=considered.pending_tokens,
        tiers=considered.tiers,
        cost=considered.cost,
        terms=considered.terms,
    )


def model_list(replicas: Iterable[Replica]) -> ModelList:
    """Models of all healthy replicas, each name once."""
    models: dict[str, Model] = {}
    for replica in replicas:
        if replica.healthy and replica.identity is not None:
            for model in replica.identity.models:
                models.setdefault(model.id, model)
    return ModelList(data=[_card(model) for model in models.values()])


def _card(model: Model) -> ModelCard:
    return ModelCard(
        id=model.id,
        created=model.created,
        owned_by=model.owned_by,
        root=model.root,
        parent=model.parent,
        max_model_len=model.max_model_len,
    )
