"""Prefill speed of each replica, learnt from times to first token.

A time to first token is modelled as ``overhead + pace * tokens``, ``tokens`` being what had to be computed before it:
the prompts booked ahead and the prompt's own uncached tokens. Both numbers come from a least-squares line through past
observations, which fade with a half-life. A replica that was seen little is drawn towards the line of the whole fleet,
and the fleet towards a prior; so an idle replica is never judged for ever by one bad minute, and a new one starts as
what its siblings are. Pure: times are handed in.

An answer that comes at once shows no first token. It is counted all the same, less the time that the answer's further
tokens take by the replica's streams, or as it is where the answer is short and there were no streams.
"""

from __future__ import annotations

import msgspec

__all__ = ["FleetSpeed", "Line", "ReplicaSpeed"]

PRIOR_PACE = 1.0 / 8_000.0
"""Seconds per token before anything was seen: a mid-size model on one accelerator."""

PRIOR_OVERHEAD = 0.005
PRIOR_WEIGHT = 0.1
"""Of the prior against what the fleet has shown; one observation weighs 1."""

FLEET_WEIGHT = 1.0
"""Of the fleet's line against what one replica has shown; the more, the later a slow replica is found out."""

SAME_PACE = 1.3
"""A replica's pace within this factor of the fleet's is taken for the fleet's: times to first token are not steady
enough to tell equal replicas apart, and the one that chance favours would get all that an idle fleet is asked."""

SAME_LINE = 0.02
"""Of its value: the fleet's line has to move by so much before every replica's is drawn anew."""

SHORT_ANSWER = 16
"""Tokens; what so few take to decode is left in the time where nothing is known of decoding."""

STEP_WEIGHT = 0.1

MIN_REACH = 256.0
HALF_LIFE = 60.0
MIN_PACE = 1e-7
MAX_PACE = 0.1
MAX_AGE = 1.0


class Line(msgspec.Struct, frozen=True):
    """``overhead`` in seconds, ``pace`` in seconds per token."""

    overhead: float
    pace: float

    def at(self, tokens: float) -> float:
        """Seconds to the first token behind that many tokens of prefill."""
        return self.overhead + self.pace * tokens


PRIOR = Line(PRIOR_OVERHEAD, PRIOR_PACE)


class _Moments:
    """Fading sums of observations, enough to draw a line through them."""

    def __init__(self) -> None:
        self.weight = self.x = self.y = self.xx = self.xy = 0.0
        self._at = 0.0

    def fade(self, now: float) -> None:
        keep = 0.5 ** (max(now - self._at, 0.0) / HALF_LIFE)
        self._at = max(now, self._at)
        self.weight, self.x, self.y = self.weight * keep, self.x * keep, self.y * keep
        self.xx, self.xy = self.xx * keep, self.xy * keep

    def add(self, x: float, y: float) -> None:
        self.weight += 1.0
        self.x += x
        self.y += y
        self.xx += x * x
        self.xy += x * y

    @property
    def reach(self) -> float:
        """Twice the mean number of tokens, at least ``MIN_REACH``: where a point pulls like an observation."""
        return max(2.0 * self.x / self.weight, MIN_REACH) if self.weight > 1e-9 else MIN_REACH

    def line(self, towards: Line, *, reach: float, pull: float, now: float) -> Line:
        """Least squares through the observations and, weighing ``pull`` each, ``towards`` at 0 and at ``reach``."""
        if not self.weight:
            return towards
        keep, far = 0.5 ** (max(now - self._at, 0.0) / HALF_LIFE), towards.at(reach)
        weight, x, y = self.weight * keep + 2 * pull, self.x * keep + pull * reach, self.y * keep
        y += pull * (towards.overhead + far)
        xx, xy = self.xx * keep + pull * reach * reach, self.xy * keep + pull * reach * far
        pace = (weight * xy - x * y) / (weight * xx - x * x)  # two points apart: the divisor is never 0
        overhead = (y - pace * x) / weight
        if overhead < 0.0:
            overhead, pace = 0.0, xy / xx
        return Line(overhead, min(max(pace, MIN_PACE), MAX_PACE))


class FleetSpeed:
    """The line of all replicas together, and the maker of each replica's own."""

    def __init__(self) -> None:
        self._moments = _Moments()
        self.line = PRIOR
        self.reach = MIN_REACH
        self.step: float | None = None

    def replica(self) -> ReplicaSpeed:
        """A replica that nothing is known of."""
        return ReplicaSpeed(self)

    def observe(self, *, tokens: float, seconds: float, now: float) -> None:
        """Take one observation in. A line that hardly moves stays the same object: every replica is drawn to it."""
        self._moments.fade(now)
        self._moments.add(tokens, seconds)
        reach = self._moments.reach
        line = self._moments.line(PRIOR, reach=reach, pull=PRIOR_WEIGHT, now=now)
        if abs(line.at(reach) - self.line.at(reach)) > SAME_LINE * line.at(reach):
            self.line, self.reach = line, reach


class ReplicaSpeed:
    """One replica's line. Drawn anew whenever the fleet's has moved: one that nobody measures follows its siblings."""

    def __init__(self, fleet: FleetSpeed) -> None:
        self._fleet = fleet
        self._moments = _Moments()
        self._line = fleet.line
        self._pace = fleet.line.pace
        self._drawn_from: Line | None = None
        self._drawn_at = 0.0
        self._step: float | None = None

    def observe(self, *, tokens: float, seconds: float, now: float) -> None:
        """A first token came ``seconds`` after its request was sent; ``tokens`` were left to prefill until then."""
        self._fleet.observe(tokens=tokens, seconds=seconds, now=now)
        self._moments.fade(now)
        self._moments.add(tokens, seconds)
        self._drawn_from = None

    def observe_whole(self, *, tokens: float, answer_tokens: int | None, seconds: float, now: float) -> None:
        """As ``observe``, of an answer of ``answer_tokens`` that was complete after ``seconds``."""
        step = self._step if self._step is not None else self._fleet.step
        if answer_tokens is None or (step is None and answer_tokens > SHORT_ANSWER):
            return
        decoding = (step or 0.0) * max(answer_tokens - 1, 0)
        if decoding < seconds:
            self.observe(tokens=tokens, seconds=seconds - decoding, now=now)

    def observe_decoding(self, *, tokens: int, seconds: float) -> None:
        """The ``tokens`` after a first one took ``seconds``."""
        if tokens > 0:
            self._step = _moved(self._step, seconds / tokens)
            self._fleet.step = _moved(self._fleet.step, seconds / tokens)

    def line(self, now: float) -> Line:
        """What is known of this replica at ``now``."""
        if self._drawn_from is not self._fleet.line or now - self._drawn_at >= MAX_AGE:
            self._draw(now)
        return self._line

    def pace(self, now: float) -> float:
        """Seconds per token for comparing this replica with others; see ``SAME_PACE``."""
        if self._drawn_from is not self._fleet.line or now - self._drawn_at >= MAX_AGE:
            self._draw(now)
        return self._pace

    def slowness(self, now: float) -> float:
        """The pace beside the fleet's: 1 for those that are taken for the same."""
        return self.pace(now) / self._fleet.line.pace

    def _draw(self, now: float) -> None:
        fleet = self._fleet
        self._line = self._moments.line(fleet.line, reach=fleet.reach, pull=FLEET_WEIGHT, now=now)
        own, usual = self._line.pace, fleet.line.pace
        self._pace = usual if usual / SAME_PACE < own < usual * SAME_PACE else own
        self._drawn_from, self._drawn_at = fleet.line, now


def _moved(mean: float | None, value: float) -> float:
    return value if mean is None else mean + STEP_WEIGHT * (value - mean)
