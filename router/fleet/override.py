"""What an operator says of a replica that it does not say itself, or says wrongly. Pure.

What is given wins over what the replica serves. With an engine kind and a model, a replica need not describe itself.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from contract.descriptor import LaneAddress
from contract.endpoint import Address, EndpointError, bracket, for_rank, is_wildcard, parse_tcp
from router.fleet.identity import MAX_RANKS, Identity, Model, Stream

__all__ = ["Override", "OverrideError"]

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_LOCAL = "ipc://"


class OverrideError(ValueError):
    """An endpoint that nobody can subscribe to; the message names key and value."""


class Override(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replica. ``block_size`` is the block width in tokens.

    ``endpoint`` is the event stream of rank 0, those of further ranks are on the ports that follow; ``endpoints`` names
    each rank's. ``replay_endpoint`` and ``replay_endpoints`` likewise.

    """

    url: _Text
    engine: Literal["kvsteer", "sglang", "vllm"] | None = None
    model: _Text | None = None
    tokenizer: _Text | None = None
    block_size: _Positive | None = None
    dp_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)] | None = None
    topic: str | None = None
    endpoint: _Text | None = None
    endpoints: tuple[_Text, ...] = ()
    replay_endpoint: _Text | None = None
    replay_endpoints: tuple[_Text, ...] = ()

    def check(self) -> None:
        """Look at the endpoints.

        Raises:
            OverrideError: one is neither ``tcp://HOST:PORT`` nor ``ipc://``, or is given in both ways.
        """
        for one, many in (("endpoint", "endpoints"), ("replay_endpoint", "replay_endpoints")):
            if getattr(self, one) is not None and getattr(self, many):
                raise OverrideError(f"{one} and {many} are both given")
            for value in (getattr(self, one), *getattr(self, many)):
                if value is not None:
                    _check_endpoint(many if getattr(self, many) else one, value)

    @property
    def whole(self) -> bool:
        """Whether a replica that says nothing of itself can be used by this alone."""
        return self.engine is not None and self.model is not None

    def identity(self) -> Identity:
        """A replica known from this alone; asked only where it is the ``whole``."""
        assert self.engine is not None, "an override without an engine is not the whole"
        assert self.model is not None, "an override without a model is not the whole"
        return Identity(
            engine=self.engine,
            version=None,
            models=(Model(id=self.model),),
            tokenizer=None,
            vocab_size=None,
            dp_size=1,
            block_size=None,
            streams=(),
            no_events="no event endpoint is configured for it",
        )

    def applied(self, found: Identity) -> Identity:
        """What a probe found, with what is configured in its place."""
        streams = self._streams(found)
        ranks = max(self.dp_size or found.dp_size, len(self.endpoints))
        return msgspec.structs.replace(
            found,
            engine=self.engine or found.engine,
            models=found.models if self.model is None else self._models(found),
            tokenizer=self.tokenizer or found.tokenizer,
            dp_size=ranks,
            block_size=self.block_size or found.block_size,
            streams=streams,
            no_events=None if streams else found.no_events,
            disagreement=None if self.block_size and streams else found.disagreement,
        )

    def _models(self, found: Identity) -> tuple[Model, ...]:
        """The configured name first; what the replica lists stays known."""
        assert self.model is not None, "asked only where a model is configured"
        return (Model(id=self.model), *(model for model in found.models if model.id != self.model))

    def _streams(self, found: Identity) -> tuple[Stream, ...]:
        live = self._of_ranks(self.endpoint, self.endpoints, found)
        replay = self._of_ranks(self.replay_endpoint, self.replay_endpoints, found)
        if not live:
            return tuple(self._amended(stream, replay) for stream in found.streams)
        topic = self.topic or ""
        return tuple(
            Stream(LaneAddress(rank, endpoint, replay[rank] if rank < len(replay) else None), topic)
            for rank, endpoint in enumerate(live)
        )

    def _of_ranks(self, first: str | None, each: tuple[str, ...], found: Identity) -> tuple[str, ...]:
        host = urlsplit(self.url).hostname or ""
        endpoints = each or _consecutive(first, self.dp_size or found.dp_size)
        return tuple(_reachable(endpoint, host) for endpoint in endpoints)

    def _amended(self, stream: Stream, replay: tuple[str, ...]) -> Stream:
        address = stream.address
        if address.dp_rank < len(replay):
            address = LaneAddress(address.dp_rank, address.endpoint, replay[address.dp_rank])
        return Stream(address, stream.topic if self.topic is None else self.topic)


def _consecutive(endpoint: str | None, ranks: int) -> tuple[str, ...]:
    """Endpoints of all ranks from that of rank 0, none past the last port."""
    if endpoint is None:
        return ()
    found = []
    for rank in range(ranks):
        try:
            found.append(for_rank(endpoint, rank))
        except EndpointError:
            break
    return tuple(found)


def _check_endpoint(key: str, value: str) -> None:
    if value.startswith(_LOCAL):
        return
    try:
        port = parse_tcp(value).port
    except EndpointError as error:
        raise OverrideError(f"{key}: {error}") from None
    if not port:
        raise OverrideError(f"{key} must have a port that is not 0, got {value!r}")


def _reachable(endpoint: str, host: str) -> str:
    """The endpoint with a wildcard replaced by the host that the replica is reached at."""
    if endpoint.startswith(_LOCAL):
        return endpoint
    address = parse_tcp(endpoint)
    return str(Address(bracket(host), address.port)) if is_wildcard(address.host) else endpoint
