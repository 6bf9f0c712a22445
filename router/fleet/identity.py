"""What a replica is, read from what it serves: engine kind, models, tokenizer, event streams. Pure.

SGLang (0.5.17 and later) and our engine describe themselves in ``/server_info``; vLLM (0.31 and later) in
``/kv_event_sources`` and ``/v1/models``. Fields that this router does not need are not looked at, and a field of an
unexpected type counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from contract.agreement import Agreement, agree
from contract.descriptor import Descriptor, DescriptorError, LaneAddress, parse_descriptor
from contract.endpoint import Address, EndpointError, bracket, is_wildcard, parse_tcp

__all__ = ["Engine", "Identity", "IdentityError", "Model", "Stream", "from_server_info", "from_vllm", "parse_models"]

MAX_RANKS = 1024


class IdentityError(ValueError):
    """An answer that does not describe an engine; the message says what is wrong with it."""


class Engine:
    """Kinds of engine, as shown in ``/replicas``."""

    KVSTEER = "kvsteer"
    SGLANG = "sglang"
    VLLM = "vllm"


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A name that clients may ask for. An adapter names the model it sits on as ``parent``."""

    id: str
    parent: str | None = None
    root: str | None = None
    created: int = 0
    owned_by: str = ""
    max_model_len: int | None = None


class Stream(msgspec.Struct, frozen=True):
    """Where one lane's events come from."""

    address: LaneAddress
    topic: str


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a probe found out. ``block_size`` is the advertised block width; None: not said.

    ``streams`` has an entry for each rank whose events can be subscribed to; ``no_events`` says why others have none.
    ``disagreement`` is set where several engines behind the address have no width, or no stream, in common.
    """

    engine: str
    version: str | None
    models: tuple[Model, ...]
    tokenizer: str | None
    vocab_size: int | None
    dp_size: int
    block_size: int | None
    streams: tuple[Stream, ...]
    no_events: str | None = None
    disagreement: str | None = None

    def stream(self, dp_rank: int) -> Stream | None:
        """The stream of one rank."""
        return next((stream for stream in self.streams if stream.address.dp_rank == dp_rank), None)

    def model(self, name: str) -> Model | None:
        """The model or adapter a client means; SGLang also takes ``BASE:ADAPTER``."""
        for model in self.models:
            if model.id == name:
                return model
        base, colon, adapter = name.partition(":")
        if colon and adapter and self.engine == Engine.SGLANG and any(model.id == base for model in self.models):
            return Model(id=adapter, parent=base)
        return None


def parse_models(answer: object) -> tuple[Model, ...]:
    """The entries of a ``/v1/models`` answer; entries without an id are left out.

    Raises:
        IdentityError: the answer is no model list.
    """
    entries = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(entries, list):
        raise IdentityError("/v1/models is no list of models")
    return tuple(_model(entry) for entry in entries if isinstance(entry, dict) and _text(entry.get("id")))


def _model(entry: Mapping[str, Any]) -> Model:
    return Model(
        id=entry["id"],
        parent=_text(entry.get("parent")),
        root=_text(entry.get("root")),
        created=_count(entry.get("created")) or 0,
        owned_by=_text(entry.get("owned_by")) or "",
        max_model_len=_count(entry.get("max_model_len")),
    )


def from_server_info(answer: object, *, models: tuple[Model, ...], host: str) -> Identity:
    """Identity of SGLang or of our engine. ``host`` is where the replica was reached: what a wildcard stands for.

    ``models`` may be empty (no ``/v1/models``): the served name is then the only model.

    Raises:
        IdentityError: the answer is no object, or names no model.
    """
    if not isinstance(answer, dict):
        raise IdentityError(f"/server_info is no object but {type(answer).__name__}")
    served = _text(answer.get("served_model_name")) or _text(answer.get("model_path"))
    if not models and served is None:
        raise IdentityError("/server_info names no model")
    descriptor, why_not = _descriptor(answer)
    streams = () if descriptor is None else _described_streams(descriptor, host)
    return Identity(
        engine=Engine.KVSTEER if answer.get("engine") == Engine.KVSTEER else Engine.SGLANG,
        version=_text(answer.get("version")),
        models=models or (Model(id=served or ""),),
        tokenizer=_text(answer.get("tokenizer_path")),
        vocab_size=_count(answer.get("vocab_size")),
        dp_size=descriptor.dp_size if descriptor else min(_count(answer.get("dp_size")) or 1, MAX_RANKS),
        block_size=descriptor.block_size if descriptor else None,
        streams=streams,
        no_events=why_not,
        disagreement=None if descriptor else _text(answer.get("kv_events_reason")),
    )


def _descriptor(server_info: Mapping[str, Any]) -> tuple[Descriptor | None, str | None]:
    try:
        descriptor = parse_descriptor(server_info)
    except DescriptorError as error:
        return None, str(error)
    if descriptor is None:
        said = _text(server_info.get("kv_events_reason"))
        return None, said or "/server_info says kv_events is null: the engine publishes nothing"
    if descriptor.dp_size > MAX_RANKS:
        return None, f"kv_events of /server_info: dp_size {descriptor.dp_size} is above {MAX_RANKS}"
    return descriptor, None


def _described_streams(descriptor: Descriptor, host: str) -> tuple[Stream, ...]:
    return tuple(Stream(address, descriptor.topic) for address in descriptor.lanes(host))


def from_vllm(
    sources: object,
    *,
    models: tuple[Model, ...],
    version: str | None,
    host: str,
    widths: Mapping[int, int | None] | None = None,
) -> Identity:
    """Identity of vLLM, from ``/kv_event_sources`` (None where it has no such route) and ``/v1/models``.

    ``widths`` are the block widths that its engines name in ``/metrics``. Where they differ, or only some name one,
    none holds for all of them.

    Raises:
        IdentityError: no model is served.
    """
    if not models:
        raise IdentityError("/v1/models is empty")
    entries = sources if isinstance(sources, dict) else {}
    streams = tuple(_sources(entries, host))
    ranks = [rank for name in entries if (rank := _rank(name)) is not None]
    named = widths if widths and any(widths.values()) else None
    agreed = agree(named) if named else Agreement(None)
    return Identity(
        engine=Engine.VLLM,
        version=version,
        models=models,
        tokenizer=next((model.root for model in models if model.root and not model.parent), None),
        vocab_size=None,
        dp_size=max(ranks, default=0) + 1,
        block_size=agreed.value,
        streams=streams,
        no_events=None if streams else _NO_SOURCES,
        disagreement=agreed.reason,
    )


_NO_SOURCES = (
    "/kv_event_sources names no stream: KV events are off, or vLLM is before 0.31 and its endpoint must be configured"
)


def _sources(entries: Mapping[str, Any], host: str) -> Iterator[Stream]:
    for name, source in entries.items():
        rank = _rank(name)
        if rank is None or not isinstance(source, dict) or source.get("publisher") != "zmq":
            continue
        endpoint = _reachable(source.get("endpoint"), host)
        if endpoint is not None:
            address = LaneAddress(rank, endpoint, _reachable(source.get("replay_endpoint"), host))
            yield Stream(address, _text(source.get("topic")) or "")


def _rank(name: str) -> int | None:
    """The data-parallel rank that a key stands for; None where it is none that this router takes."""
    if not (name.isascii() and name.isdecimal() and len(name) <= len(str(MAX_RANKS))):
        return None
    return int(name) if int(name) < MAX_RANKS else None


def _reachable(endpoint: object, host: str) -> str | None:
    """The endpoint with a wildcard host replaced; None where it is not one a router on another host could reach."""
    try:
        address = parse_tcp(_text(endpoint) or "")
    except EndpointError:
        return None
    return str(Address(bracket(host), address.port)) if is_wildcard(address.host) else str(address)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
