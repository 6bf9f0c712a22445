"""The figures of the table: rates are sums over sums, the median is over all requests."""

import pytest
from rich.console import Console

from bench.client import Reply
from bench.demo.show import comparison, progress, report_table
from bench.report import PolicyReport, ReplicaRow, make_report, quotient
from bench.router_view import FleetView, ReplicaView, RequestCounts, TokenCounts
from bench.tally import Asked, Tally


def row(name: str, *, prompt: int, predicted: int, reported: int, ttfts: tuple[float, ...] = ()) -> ReplicaRow:
    return ReplicaRow(
        name=name, requests=1, prompt_tokens=prompt, predicted_hit=predicted, reported_hit=reported, ttfts=ttfts
    )


UNEVEN = PolicyReport(
    "kv",
    [
        row("a", prompt=1000, predicted=900, reported=800, ttfts=(0.1, 0.2, 0.3)),
        row("b", prompt=100, predicted=0, reported=10, ttfts=(0.9,)),
    ],
)


def test_a_total_rate_is_a_sum_over_a_sum_not_a_mean_of_rates() -> None:
    total = UNEVEN.total
    assert total.reported_rate == 810 / 1100
    assert total.predicted_rate == 900 / 1100
    assert (total.requests, total.prompt_tokens) == (2, 1100)


def test_a_total_median_is_over_all_requests() -> None:
    assert UNEVEN.total.ttft_p50 == pytest.approx(0.25)
    assert UNEVEN.rows[1].ttft_p50 == 0.9


def test_an_idle_replica_has_no_rates_rather_than_zero() -> None:
    idle = row("idle", prompt=0, predicted=0, reported=0)
    assert (idle.predicted_rate, idle.reported_rate, idle.ttft_p50) == (None, None, None)


def test_a_quotient_needs_both_sides_and_a_base() -> None:
    assert quotient(1.0, 4.0) == 0.25
    assert quotient(0.0, 4.0) == 0.0
    assert (quotient(1.0, 0.0), quotient(None, 1.0), quotient(1.0, None)) == (None, None, None)


def reply(replica: str, ttft: float | None) -> Reply:
    return Reply(
        replica=replica, text="", prompt_tokens=10, cached_tokens=6, completion_tokens=1, ttft=ttft, elapsed=1.0
    )


def test_a_report_takes_tokens_from_the_router_and_time_from_the_client() -> None:
    tally = Tally()
    for replica, ttft in (("http://a", 0.5), ("http://a", None), ("http://b", 0.1)):
        tally.add(Asked("/v1/completions", b"{}"), reply(replica, ttft))
    books = TokenCounts(prompt=20, predicted_hit=12, reported_hit=11)
    fleet = FleetView([view("http://a", books, routed=2), view("http://b", books, routed=1)])
    first, second = make_report("kv", fleet, tally).rows
    assert (first.name, first.requests, first.reported_hit, first.ttfts) == ("http://a", 2, 11, (0.5,))
    assert second.ttfts == (0.1,)


def view(url: str, tokens: TokenCounts, *, routed: int) -> ReplicaView:
    requests = RequestCounts(routed=routed, in_flight=0)
    return ReplicaView(url=url, state="ready", tokens=tokens, requests=requests, lanes=[], faults=[])


def printed(console: Console, *what: object) -> str:
    with console.capture() as capture:
        for item in what:
            console.print(item)
    return capture.get()


def test_the_table_has_every_replica_and_a_total_for_each_policy() -> None:
    base = PolicyReport("round_robin", [row("http://a", prompt=1000, predicted=200, reported=200, ttfts=(0.5,))])
    text = printed(Console(width=120), report_table([base, UNEVEN]))
    assert [text.count(name) for name in ("round_robin", "kv", "total")] == [2, 3, 2]
    assert "73.6%" in text
    assert "250 ms" in text


def test_the_comparison_names_both_figures_and_their_ratio() -> None:
    base = PolicyReport("round_robin", [row("a", prompt=1000, predicted=200, reported=200, ttfts=(0.5,))])
    line = comparison(base, UNEVEN)
    assert "73.6% / 20.0% = 3.68" in line
    assert "250 ms / 500 ms = 0.50" in line


def test_a_comparison_with_nothing_cached_has_no_ratio() -> None:
    cold = PolicyReport("round_robin", [row("a", prompt=1000, predicted=0, reported=0)])
    assert "73.6% / 0.0% = -" in comparison(cold, UNEVEN)


def test_progress_is_a_line_a_quarter_where_there_is_no_terminal() -> None:
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture, progress(console, "kv", total=10) as advance:
        for _ in range(10):
            advance()
    assert capture.get().splitlines() == [f"kv: {done} of 10 requests" for done in (2, 5, 7, 10)]
