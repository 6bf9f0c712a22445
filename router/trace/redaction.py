"""A trace of the same traffic that says nothing of what was asked: for showing it to others.

Token ids and block hashes in events become others, the keys of requests' prompts those of the new ids, and ids that
were recorded with requests are left out. Whatever was equal stays equal, prefix by prefix, so streams, hits and
what-if come out as before. What stays as it was: times, lengths, who shares how much with whom, URLs, names of models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from contract.events import BlockStored, EventDecodeError, decode_batch
from contract.hashing import block_keys
from router.trace.block_chains import BlockChains
from router.trace.in_order import LanesInOrder
from router.trace.reader import TraceReader
from router.trace.records import Began, FrameHeard, LaneNamed, PrefixKeys, Record, Routed, pack_keys
from router.trace.redacted_payload import redacted_payload
from router.trace.replayer import LaneName
from router.trace.secret import Secret

__all__ = ["redacted"]

_Chains = dict[LaneName, BlockChains]


def redacted(reader: TraceReader, secret: Secret) -> Iterator[Record]:
    """The records of a trace, redacted. Reads it twice: events out of order name blocks that are told of later.

    Raises:
        TraceFileError: it cannot be read.
    """
    later = _chains_in_order(reader)
    chains: _Chains = {}
    names: dict[int, LaneName] = {}
    for record in reader:
        match record:
            case Began():
                names.clear()
                yield msgspec.structs.replace(record, source=f"{record.source}, redacted")
            case LaneNamed():
                name = names[record.lane] = LaneName(record.url, record.dp_rank)
                chains.setdefault(name, BlockChains(later.get(name)))
                yield record
            case FrameHeard():
                payload = redacted_payload(record.payload, secret=secret, chains=chains[names[record.lane]])
                yield msgspec.structs.replace(record, payload=payload)
            case Routed():
                prefixes = [_prefix(prefix, secret) for prefix in record.prefixes]
                yield msgspec.structs.replace(record, prefixes=prefixes, packed_ids=None)
            case _:
                yield record


def _prefix(prefix: PrefixKeys, secret: Secret) -> PrefixKeys:
    """The keys that the redacted ids of the same blocks have."""
    units = 2 * prefix.width if prefix.pairs else prefix.width
    ids = secret.block_ids(prefix.keys, units=units)
    return PrefixKeys(prefix.width, prefix.pairs, pack_keys(block_keys(ids, width=units)))


def _chains_in_order(reader: TraceReader) -> _Chains:
    """Every lane's blocks, read in the order of its batches."""
    chains: _Chains = {}
    lanes = LanesInOrder(lambda named: chains.setdefault(LaneName(named.url, named.dp_rank), BlockChains()))
    for record in reader:
        _learn(lanes.feed(record))
    _learn(lanes.rest())
    return chains


def _learn(frames: Iterable[tuple[BlockChains, FrameHeard]]) -> None:
    for chains, frame in frames:
        for event in _stores(frame.payload):
            chains.keys(event)


def _stores(payload: bytes) -> Iterator[BlockStored]:
    try:
        events = decode_batch(payload).events
    except EventDecodeError:
        return
    yield from (event for event in events if isinstance(event, BlockStored))
