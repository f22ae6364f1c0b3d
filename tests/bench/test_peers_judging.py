"""A bar beside peers is passed by figures that are really apart, missed by what is not there."""

from __future__ import annotations

import math

import pytest

from bench.figures import Series
from bench.peers.bars import judge
from bench.peers.figures import Failure, Figure, Results, Values, is_apart

NODE, FAST, CHEAP = "Graphile Worker", "PgQueuer", "Oban"
SYSTEMS = ("Trellis", FAST, CHEAP, NODE)
PYTHON = frozenset({"Trellis", FAST, CHEAP})

GOOD: dict[str, dict[Figure, float]] = {
    "Trellis": {
        Figure.DRAIN: 45_000, Figure.DRAIN_2: 50_000, Figure.MANY: 70_000, Figure.CALLERS: 9_000,
        Figure.DEEP: 43_000, Figure.LATENCY: 2.0, Figure.CPU: 0.05, Figure.CPU_WORKER: 0.014,
        Figure.MEMORY: 70, Figure.CONNECTIONS: 3,
    },
    FAST: {
        Figure.DRAIN: 12_000, Figure.DRAIN_2: 20_000, Figure.MANY: 40_000, Figure.CALLERS: 2_000,
        Figure.LATENCY: 3.0, Figure.CPU: 0.09,
    },
    CHEAP: {Figure.DRAIN: 1_000, Figure.CPU: 0.01, Figure.CALLERS: 1_500, Figure.LATENCY: 2.9},
    NODE: {
        Figure.DRAIN: 33_000, Figure.DRAIN_2: 38_000, Figure.MANY: 46_000, Figure.CALLERS: 8_000,
        Figure.LATENCY: 2.3, Figure.CPU: 0.04,
    },
}  # fmt: skip


def results(
    *rounds: dict[tuple[str, Figure], float], count: int = 3, absent: dict[str, str] | None = None
) -> Results:
    """Return rounds of good figures, each with what is said to be different in it."""
    changes = [*rounds, *({} for _ in range(count - len(rounds)))]
    made = [
        {
            who: Values(
                {figure: [change.get((who, figure), value)] for figure, value in of.items()}
            )
            for who, of in GOOD.items()
            if who not in (absent or {})
        }
        for change in changes
    ]
    return Results(made, SYSTEMS, PYTHON, absent or {})


def missed(found: Results) -> list[str]:
    return [verdict.bar for verdict in judge(found) if not verdict.is_met]


def seen(found: Results, bar: str) -> str:
    (verdict,) = [verdict for verdict in judge(found) if verdict.bar.startswith(bar)]
    return verdict.seen


def everywhere(who: str, figure: Figure, value: float) -> Results:
    return results(*[{(who, figure): value}] * 3)


def test_figures_that_reach_every_bar_pass_all_of_them() -> None:
    assert missed(results()) == []
    assert len(judge(results())) == 13


@pytest.mark.parametrize(
    ("figure", "value", "bars"),
    [
        (Figure.DRAIN, 39_500, ["drain, 1 process ≥ 1.2 × the fastest peer"]),
        (Figure.DRAIN_2, 41_000, ["drain, 2 processes ≥ 1.1 × the fastest peer"]),
        (Figure.MANY, 59_000, ["create, bulk ≥ 1.3 × the fastest peer"]),
        (Figure.CALLERS, 5_900, ["create, 32 callers ≥ 3 × the fastest Python peer"]),
        (Figure.LATENCY, 2.4, ["create to start, ms: p50 no worse than the fastest peer's"]),
        (Figure.DEEP, 40_000, ["drain, 1 process, backlog behind ≥ 0.9 of the drain without"]),
        (Figure.CPU, 0.061, ["CPU, s per 1,000 jobs ≤ 1.5 × the fastest peer's"]),
        (Figure.CPU_WORKER, 0.016, ["Python of Trellis ≤ 15 µs a job (s per 1,000)"]),
        (Figure.MEMORY, 81, ["idle worker ≤ 80 MB"]),
        (Figure.CONNECTIONS, 4, ["a worker ≤ 3 connections"]),
    ],
)
def test_a_figure_just_short_of_its_bar_misses_it(
    figure: Figure, value: float, bars: list[str]
) -> None:
    assert missed(everywhere("Trellis", figure, value)) == bars


def test_a_small_lead_does_not_count_when_one_round_of_the_peer_is_better_than_one_of_ours() -> (
    None
):
    once = results({("Trellis", Figure.DRAIN_2): 37_000})
    assert missed(once) == ["drain, 2 processes ≥ 1.1 × the fastest peer"]
    assert seen(once, "drain, 2").endswith("the spreads overlap, so it does not count")


def test_a_large_lead_counts_whatever_the_spreads_do() -> None:
    assert missed(results({(FAST, Figure.CALLERS): 9_500})) == []


def test_a_small_lead_in_one_round_is_no_lead() -> None:
    bars = missed(results(count=1))
    assert [bar for bar in bars if "1.2" in bar or "1.1" in bar or "1.3" in bar] == bars
    assert len(bars) == 3


def test_node_is_the_fastest_peer_but_no_python_peer() -> None:
    found = results()
    assert "Graphile Worker" in seen(found, "drain, 1 process ≥ 1.2")
    assert "PgQueuer" in seen(found, "drain, 1 process ≥ 3")


def test_cost_is_compared_with_the_peer_that_drains_fastest_not_with_the_cheapest() -> None:
    assert "PgQueuer" in seen(results(), "CPU, s per 1,000 jobs ≤ 0.7")


def test_a_long_tail_misses_its_bar_though_the_median_is_good() -> None:
    found = results()
    latencies = [2.0] * 98 + [7.0, 7.0]
    rounds = [
        {**one, "Trellis": {**one["Trellis"], Figure.LATENCY: latencies}} for one in found.rounds
    ]
    assert missed(Results(rounds, SYSTEMS, PYTHON, {})) == ["create to start, ms: p99 < 3 × p50"]


def test_without_an_engine_every_bar_is_missed_and_says_so() -> None:
    found = results(absent={"Trellis": "no engine"})
    verdicts = judge(found)
    assert [verdict.seen for verdict in verdicts] == ["not measured: no engine"] * len(verdicts)
    assert not any(verdict.is_met for verdict in verdicts)


def test_without_any_peer_nothing_is_passed_by_comparison() -> None:
    found = results(absent=dict.fromkeys((FAST, CHEAP, NODE), "not installed"))
    beside = [verdict for verdict in judge(found) if "peer" in verdict.bar]
    assert [verdict.word for verdict in beside] == ["MISS"] * 8
    assert {verdict.seen for verdict in beside} == {"not measured: nothing to compare with"}


def test_a_ratio_is_taken_in_the_rounds_that_both_have() -> None:
    rounds = [
        {"Trellis": {Figure.DRAIN: [10.0]}, FAST: {Figure.DRAIN: [5.0]}},
        {"Trellis": {Figure.DRAIN: [90.0]}},
        {"Trellis": {Figure.DRAIN: [40.0]}, FAST: {Figure.DRAIN: [10.0]}},
    ]
    found = Results(rounds, SYSTEMS, PYTHON, {})
    ratio = found.ratio(Figure.DRAIN, "Trellis", FAST)
    assert ratio is not None
    assert math.isclose(ratio, 3.0)
    assert found.ratio(Figure.DRAIN, "Trellis", NODE) is None


def test_a_ratio_to_nothing_is_none() -> None:
    rounds = [{"Trellis": {Figure.CPU: [0.1]}, FAST: {Figure.CPU: [0.0]}}]
    assert Results(rounds, SYSTEMS, PYTHON, {}).ratio(Figure.CPU, "Trellis", FAST) is None


def test_less_is_better_for_costs() -> None:
    low, high = Series(((1.0,), (2.0,))), Series(((2.5,), (3.0,)))
    assert is_apart(low, high, Figure.LATENCY)
    assert is_apart(high, low, Figure.DRAIN)
    assert not is_apart(low, high, Figure.DRAIN)
    assert results().best(Figure.CPU, [FAST, CHEAP]) == CHEAP


def test_a_missing_figure_says_whether_it_failed_or_does_not_exist() -> None:
    failure = Failure(0, FAST, "create in bulk", "out of memory", (Figure.MANY,))
    found = Results([{}], SYSTEMS, PYTHON, {NODE: "not installed"}, [failure])
    assert found.why_missing(FAST, Figure.MANY) == "failed: out of memory"
    assert found.why_missing(FAST, Figure.DRAIN) == "has none"
    assert found.why_missing(NODE, Figure.DRAIN) == "not installed"
    assert found.why_missing("Chancy", Figure.DRAIN) == "left out of this run"
