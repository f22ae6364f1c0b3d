"""What a run says: one table with ratios, the bars, the machine; and a file with every round.

Every system has its row for every figure. One that is absent, or has no such thing, says so there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.bars import Verdict
from bench.figures import Figure, Measured, Results, Series, Who
from bench.sizes import BATCH, CALLERS, PAGE, Sizes

_HUEY: Final = {Who.HUEY_SYNCED: "Huey, fsync", Who.HUEY: "Huey, no fsync"}
_PORT: Final = {Who.ENGINE: "engine", Who.FLOOR: f"floor, {BATCH} per commit"}

#: The rows of each figure, ours first: the others are compared with it.
ROWS: Final[Mapping[Figure, Mapping[Who, str]]] = {
    Figure.ONE: {Who.TRELLIS: "Trellis", Who.FLOOR: "floor, 1 per commit", **_HUEY},
    Figure.CALLERS: {
        Who.TRELLIS: "Trellis, coroutines",
        Who.FLOOR: f"floor, {CALLERS} per commit",
        **{who: f"{name}, threads" for who, name in _HUEY.items()},
    },
    Figure.MANY: {
        Who.TRELLIS: "Trellis",
        Who.FLOOR: f"floor, {BATCH} per commit",
        Who.FLOOR_OF_PAGES: f"floor, {PAGE} per commit",
        **_HUEY,
    },
    Figure.DRAIN: {
        Who.TRELLIS: "Trellis",
        Who.FLOOR: f"floor, {BATCH} per commit",
        **{who: f"{name}, 1 thread" for who, name in _HUEY.items()},
    },
    Figure.DRAIN_2: {
        Who.TRELLIS: "Trellis",
        Who.FLOOR: "floor, 1 process",
        **{who: f"{name}, 2 processes" for who, name in _HUEY.items()},
    },
    Figure.LATENCY: {Who.TRELLIS: "Trellis", **_HUEY},
    Figure.PORT_CREATE: _PORT,
    Figure.PORT_DRAIN: _PORT,
    Figure.PORT_SHARED: _PORT,
}


def table(results: Results) -> Table:
    """Return all figures as one table."""
    made = Table(title="SQLite: jobs/s, and p50 / p95 / p99 of the latency in ms")
    made.add_column("", no_wrap=True)
    made.add_column("who", no_wrap=True)
    for heading in ("median", "lowest–highest", "ours / it"):
        made.add_column(heading, justify="right", no_wrap=True)
    for figure, names in ROWS.items():
        ours = results.series(next(iter(names)), figure)
        for number, (who, name) in enumerate(names.items()):
            cells = _cells(results, who, figure, ours if number else None)
            made.add_row("" if number else figure, name, *cells)
        made.add_section()
    return made


def _cells(results: Results, who: Who, figure: Figure, ours: Series | None) -> tuple[str, str, str]:
    series = results.series(who, figure)
    if series is None:
        return results.absent.get(who, "has none"), "", ""
    low, high = min(series.middles), max(series.middles)
    ratio = f"{ours.ratio_to(series):.2f}" if ours else ""
    if figure is Figure.LATENCY:
        percentiles = " / ".join(f"{series.percentile(each):.1f}" for each in (50, 95, 99))
        return percentiles, f"p50 {low:.1f}–{high:.1f}", ratio
    return f"{series.median:,.0f}", f"{low:,.0f}–{high:,.0f}", ratio


def show(
    results: Results, verdicts: Sequence[Verdict], facts: Mapping[str, str], console: Console
) -> None:
    """Print everything."""
    console.print(table(results))
    for verdict in verdicts:
        console.print(f"{verdict.word}  {verdict.bar}: {verdict.seen}", highlight=False)
    console.print()
    for name, text in facts.items():
        console.print(f"{name}: {text}", highlight=False)


def as_json(
    results: Results, verdicts: Sequence[Verdict], facts: Mapping[str, str], sizes: Sizes
) -> str:
    """Return all there is to know about a run, one line per round."""
    head = {
        "machine": facts,
        "sizes": dataclasses.asdict(sizes),
        "absent": results.absent,
        "bars": [{"verdict": one.word, "bar": one.bar, "seen": one.seen} for one in verdicts],
        "weather": [one._asdict() for one in results.weather],
    }
    lines = [f"  {json.dumps(_rounded(one))}" for one in results.rounds]
    text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    return text + ',\n "rounds": [\n' + ",\n".join(lines) + "\n ]\n}\n"


def _rounded(measured: Measured) -> dict[str, dict[str, list[float]]]:
    return {
        who: {figure: [round(value, 3) for value in values] for figure, values in figures.items()}
        for who, figures in measured.items()
    }
