"""The bars that Trellis must reach beside its peers: each is PASS or MISS, with its figures.

What was not measured is a MISS. A bar of less than 1.4 times a peer's figure counts only when the
spreads do not overlap: the worst round of Trellis is better than the best of the peer.
"No worse than" claims no lead, so there the medians decide, and the spreads are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.bars import Verdict
from bench.figures import Series
from bench.peers.figures import Figure, Results, is_apart, spread

#: Below this, two figures are distinguished by their spreads only.
CLEAR: Final = 1.4
#: The number of rounds that a spread needs.
ROUNDS: Final = 3
LATENCY_TAIL: Final = 3.0
DEEP_OF_PLAIN: Final = 0.9
#: Of the whole worker, its guardian included, per 1,000 jobs: 15 µs a job.
PYTHON_SECONDS: Final = 0.015
MEGABYTES: Final = 80.0
CONNECTIONS: Final = 3


def judge(results: Results) -> list[Verdict]:
    """Return a verdict on every bar."""
    peers = results.peers
    pythons = [who for who in peers if who in results.python]
    return [
        _ahead(results, Figure.DRAIN, 1.2, peers, "the fastest peer"),
        _ahead(results, Figure.DRAIN, 3.0, pythons, "the fastest Python peer"),
        _ahead(results, Figure.DRAIN_2, 1.1, peers, "the fastest peer"),
        _ahead(results, Figure.MANY, 1.3, peers, "the fastest peer"),
        _ahead(results, Figure.CALLERS, 3.0, pythons, "the fastest Python peer"),
        _no_worse(results, Figure.LATENCY, peers),
        _tail(results),
        _deep(results),
        _cpu(results, 1.5, peers, "the fastest peer"),
        _cpu(results, 0.7, pythons, "the fastest Python peer"),
        _at_most(
            results,
            Figure.CPU_WORKER,
            PYTHON_SECONDS,
            "Python of Trellis ≤ 15 µs a job (s per 1,000)",
        ),
        _at_most(results, Figure.MEMORY, MEGABYTES, f"idle worker ≤ {MEGABYTES:g} MB"),
        _at_most(results, Figure.CONNECTIONS, CONNECTIONS, f"a worker ≤ {CONNECTIONS} connections"),
    ]


def _ahead(
    results: Results, figure: Figure, least: float, among: Sequence[str], whose: str
) -> Verdict:
    """Judge a lead: this many times the best of them."""
    bar = f"{figure} ≥ {least:g} × {whose}"
    best = results.best(figure, among)
    ours, theirs = _pair(results, figure, best)
    ratio = results.ratio(figure, results.ours, best) if best else None
    if ours is None or theirs is None or ratio is None:
        return _unmeasured(results, bar, figure)
    seen = f"{ratio:.2f} × {best}: {_words(ours)} against {_words(theirs)}"
    doubt = None if least >= CLEAR else _doubt(ours, theirs, figure)
    if ratio >= least and doubt:
        seen += f"; {doubt}, so it does not count"
    return Verdict(bar, seen, ratio >= least and doubt is None)


def _doubt(ours: Series, theirs: Series, figure: Figure) -> str | None:
    if min(len(ours.rounds), len(theirs.rounds)) < ROUNDS:
        return f"fewer than {ROUNDS} rounds have no spread"
    return None if is_apart(ours, theirs, figure) else "the spreads overlap"


def _no_worse(results: Results, figure: Figure, among: Sequence[str]) -> Verdict:
    bar = f"{figure}: p50 no worse than the fastest peer's"
    best = results.best(figure, among)
    ours, theirs = _pair(results, figure, best)
    if ours is None or theirs is None:
        return _unmeasured(results, bar, figure)
    seen = f"{_words(ours)} against {best}'s {_words(theirs)}"
    return Verdict(bar, seen, ours.median <= theirs.median)


def _tail(results: Results) -> Verdict:
    bar = f"{Figure.LATENCY}: p99 < {LATENCY_TAIL:g} × p50"
    ours = results.series(results.ours, Figure.LATENCY)
    if ours is None:
        return _unmeasured(results, bar, Figure.LATENCY)
    p50, p99 = ours.percentile(50), ours.percentile(99)
    return Verdict(bar, f"{p99:.2f} and {p50:.2f}: {p99 / p50:.2f} ×", p99 < LATENCY_TAIL * p50)


def _deep(results: Results) -> Verdict:
    bar = f"{Figure.DEEP} ≥ {DEEP_OF_PLAIN:g} of the drain without"
    who = results.ours
    ratio = results.ratio_of((who, Figure.DEEP), (who, Figure.DRAIN))
    deep, plain = (results.series(who, figure) for figure in (Figure.DEEP, Figure.DRAIN))
    if ratio is None or deep is None or plain is None:
        return _unmeasured(results, bar, Figure.DEEP)
    seen = f"{ratio:.2f}: {_words(deep)} against {_words(plain)}"
    return Verdict(bar, seen, ratio >= DEEP_OF_PLAIN)


def _cpu(results: Results, most: float, among: Sequence[str], whose: str) -> Verdict:
    """Judge the cost of Trellis beside that of the fastest draining peer."""
    bar = f"{Figure.CPU} ≤ {most:g} × {whose}'s"
    fastest = results.best(Figure.DRAIN, among)
    ours, theirs = _pair(results, Figure.CPU, fastest)
    ratio = results.ratio(Figure.CPU, results.ours, fastest) if fastest else None
    if ours is None or theirs is None or ratio is None:
        return _unmeasured(results, bar, Figure.CPU)
    seen = f"{ratio:.2f} × {fastest}: {_words(ours)} against {_words(theirs)}"
    return Verdict(bar, seen, ratio <= most)


def _at_most(results: Results, figure: Figure, most: float, bar: str) -> Verdict:
    ours = results.series(results.ours, figure)
    if ours is None:
        return _unmeasured(results, bar, figure)
    return Verdict(bar, _words(ours), ours.median <= most)


def _pair(
    results: Results, figure: Figure, other: str | None
) -> tuple[Series | None, Series | None]:
    theirs = results.series(other, figure) if other else None
    return results.series(results.ours, figure), theirs


def _unmeasured(results: Results, bar: str, figure: Figure) -> Verdict:
    if results.series(results.ours, figure) is None:
        return Verdict(bar, f"not measured: {results.why_missing(results.ours, figure)}", False)
    return Verdict(bar, "not measured: nothing to compare with", False)


def _words(series: Series) -> str:
    low, high = spread(series)
    digits = 0 if series.median >= 100 else 3
    return f"{series.median:,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f})"
