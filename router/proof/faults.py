"""Everything that is wrong with a lane, from what was seen. Pure.

Judged afresh each time somebody looks; a fault that no longer holds is no longer there.
"""

from __future__ import annotations

from router.proof import hit_faults, stream_faults
from router.proof.facts import LaneFacts
from router.proof.fault import Fault

__all__ = ["lane_faults"]

_CHECKS = (
    stream_faults.width_mismatch,
    stream_faults.events_silent,
    stream_faults.stream_lost,
    stream_faults.stream_untrusted,
    hit_faults.reports_missing,
    hit_faults.tokenization_mismatch,
    hit_faults.salt_or_adapter_mismatch,
    hit_faults.hits_not_realised,
    hit_faults.hits_not_predicted,
    hit_faults.prompts_shorter_than_block,
)


def lane_faults(facts: LaneFacts) -> list[Fault]:
    """Everything that is wrong with a lane now, the causes before their effects."""
    return [fault for check in _CHECKS for fault in check(facts)]
