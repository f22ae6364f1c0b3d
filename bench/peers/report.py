"""The report of a run: one table with ratios, the bars, the machine; and a file with every round.

Every system has a row for every figure. The row of one that is absent or failed has the reason.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.bars import Verdict
from bench.figures import Series
from bench.peers.figures import Capped, Figure, Results, Values, spread
from bench.peers.sizes import Sizes

#: More than this many cores of others in a system's turn, and its figures are marked.
BUSY: Final = 0.25
_REASON: Final = 40


def table(results: Results) -> Table:
    """Return all figures as one table."""
    made = Table(title="PostgreSQL: medians of the rounds; jobs/s unless it says otherwise")
    made.add_column("", no_wrap=True)
    made.add_column("system", no_wrap=True)
    for heading in ("median", "lowest–highest", f"{results.ours} / it"):
        made.add_column(heading, justify="right", no_wrap=True)
    for figure in Figure:
        for number, who in enumerate(results.systems):
            made.add_row("" if number else figure, who, *_cells(results, who, figure))
        made.add_section()
    return made


def _cells(results: Results, who: str, figure: Figure) -> tuple[str, str, str]:
    series = results.series(who, figure)
    if series is None:
        return escape(results.why_missing(who, figure)[:_REASON]), "", ""
    ratio = None if who == results.ours else results.ratio(figure, results.ours, who)
    low, high = spread(series)
    return (
        f"{_median(series, figure)}{_signs(results, who, figure)}",
        f"{_number(low)}–{_number(high)}",
        "" if ratio is None else f"{ratio:.2f}",
    )


def _median(series: Series, figure: Figure) -> str:
    if figure is Figure.LATENCY:
        return " / ".join(f"{series.percentile(each):.2f}" for each in (50, 95, 99))
    return _number(series.median)


def _signs(results: Results, who: str, figure: Figure) -> str:
    busy = [one for one in results.weather if one.who == who and one.others > BUSY]
    return ("*" if Capped(who, figure) in results.capped else "") + ("~" if busy else "")


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def show(
    results: Results, verdicts: Sequence[Verdict], facts: Mapping[str, str], console: Console
) -> None:
    """Print everything."""
    console.print(table(results))
    console.print(
        "* time was up: the rate of what was done   "
        f"~ others kept more than {BUSY:g} cores busy in a round   "
        "latency: p50 / p95 / p99",
        highlight=False,
    )
    for verdict in verdicts:
        line = f"{verdict.word}  {verdict.bar}: {verdict.seen}"
        console.print(line, highlight=False, markup=False)
    for failure in results.failures:
        where = f"round {failure.round + 1}, {failure.who}, {failure.part}"
        console.print(f"FAILED  {where}: {failure.why}", highlight=False, markup=False)
    console.print()
    for name, text in facts.items():
        console.print(f"{name}: {text}", highlight=False)


def as_json(
    results: Results, verdicts: Sequence[Verdict], facts: Mapping[str, str], sizes: Sizes
) -> str:
    """Return all there is to know about a run, one line per round and system."""
    head = {
        "machine": facts,
        "sizes": dataclasses.asdict(sizes),
        "absent": results.absent,
        "bars": [{"verdict": one.word, "bar": one.bar, "seen": one.seen} for one in verdicts],
        "failures": [one._asdict() for one in results.failures],
        "capped": [list(one) for one in sorted(results.capped)],
        "weather": [one._asdict() for one in results.weather],
    }
    lines = [
        "  " + json.dumps({"round": number, "who": who, **_rounded(values)})
        for number, one in enumerate(results.rounds)
        for who, values in one.items()
    ]
    text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    return text + ',\n "rounds": [\n' + ",\n".join(lines) + "\n ]\n}\n"


def _rounded(values: Values) -> dict[str, list[float]]:
    return {figure.strip(): [round(each, 4) for each in found] for figure, found in values.items()}
