"""KV events from an engine to its routers: a live stream, and a replay of what a router missed. For any engine.

    publisher = EventPublisher(parse_kv_events_config(text), dp_rank=0)
    publisher.publish([BlockStored(...), BlockRemoved(...)])  # after every step; never blocks
    publisher.close()

It knows the wire and its subscribers. It does not know what the events mean or where they come from.
"""

from publisher.counters import PublisherCounters
from publisher.errors import PublisherError
from publisher.publisher import EventPublisher
from publisher.sessions import ReplayLimits
from publisher.snapshot import Snapshot

__all__ = ["EventPublisher", "PublisherCounters", "PublisherError", "ReplayLimits", "Snapshot"]
