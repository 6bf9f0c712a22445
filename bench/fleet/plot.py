"""One picture of a comparison: how soon first tokens come under each policy, and how much each one finds cached.

Needs matplotlib, so it is imported only by whoever asks for a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.fleet.outcome import Outcome, quantile
from bench.fleet.report import Comparison

__all__ = ["draw"]

SIZE = (12.0, 5.0)
DPI = 130
OURS = "kv"
POINTS = 400
"""Of a curve; more cannot be told apart."""


def draw(of: Comparison, path: Path) -> None:
    """Write a PNG; of several runs the first is shown.

    Raises:
        OSError: the file cannot be written.
    """
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    times, rates = figure.subplots(1, 2, width_ratios=(3, 2))
    figure.suptitle(of.case, fontsize="medium")
    shown = {policy: outcomes[0] for policy, outcomes in of.outcomes.items()}
    colours = {policy: f"C{place}" for place, policy in enumerate(shown)}
    for policy, outcome in shown.items():
        ours = policy == OURS
        times.plot(*_curve(outcome), color=colours[policy], label=policy, linewidth=1.2 + ours, zorder=2 + ours)
    _label_times(times)
    _bars(rates, of, shown, colours)
    figure.savefig(path, format="png")


def _curve(outcome: Outcome) -> tuple[Sequence[float], Sequence[float]]:
    shares = [place / POINTS for place in range(1, POINTS + 1)]
    return [quantile(outcome.ordered_ttfts, share) for share in shares], shares


def _label_times(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("time to first token, s")
    axes.set_ylabel("share of requests")
    axes.set_ylim(0.0, 1.0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="upper left", fontsize="small")


def _bars(axes: Axes, of: Comparison, shown: dict[str, Outcome], colours: dict[str, str]) -> None:
    names = [f"{policy}  {outcome.hits.token_rate:.3f}" for policy, outcome in shown.items()]
    rates = [outcome.hits.token_rate for outcome in shown.values()]
    axes.barh(names, rates, color=[colours[policy] for policy in shown])
    axes.invert_yaxis()
    ceiling = of.ceiling.token_rate
    axes.axvline(ceiling, color="black", linestyle="--", linewidth=1.0, label=f"one pooled cache: {ceiling:.3f}")
    axes.set_xlim(0.0, max(1.1 * max(ceiling, *rates), 0.01))
    axes.set_xlabel("share of prompt tokens found cached")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small")
