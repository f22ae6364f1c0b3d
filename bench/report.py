"""The report of a run: one table with ratios, the bars, the machine; and a file with every round.

Every system has a row for every figure. The row of one without that figure contains the reason.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.bars import Verdict
from bench.figures import Figure, Measured, Results, Series, System
from bench.sizes import BATCH, CALLERS, PAGE, Sizes

_HUEY: Final = {System.HUEY_SYNCED: "Huey, fsync", System.HUEY: "Huey, no fsync"}
_PORT: Final = {System.ENGINE: "engine", System.FLOOR: f"floor, {BATCH} per commit"}

#: The rows of each figure; the first is compared with the others.
ROWS: Final[Mapping[Figure, Mapping[System, str]]] = {
    Figure.ONE: {System.TRELLIS: "Trellis", System.FLOOR: "floor, 1 per commit", **_HUEY},
    Figure.CALLERS: {
        System.TRELLIS: "Trellis, coroutines",
        System.FLOOR: f"floor, {CALLERS} per commit",
        **{system: f"{name}, threads" for system, name in _HUEY.items()},
    },
    Figure.MANY: {
        System.TRELLIS: "Trellis",
        System.FLOOR: f"floor, {BATCH} per commit",
        System.FLOOR_OF_PAGES: f"floor, {PAGE} per commit",
        **_HUEY,
    },
    Figure.DRAIN: {
        System.TRELLIS: "Trellis",
        System.FLOOR: f"floor, {BATCH} per commit",
        **{system: f"{name}, 1 thread" for system, name in _HUEY.items()},
    },
    Figure.DRAIN_2: {
        System.TRELLIS: "Trellis",
        System.FLOOR: "floor, 1 process",
        **{system: f"{name}, 2 processes" for system, name in _HUEY.items()},
    },
    Figure.LATENCY: {System.TRELLIS: "Trellis", **_HUEY},
    Figure.PORT_CREATE: _PORT,
    Figure.PORT_DRAIN: _PORT,
    Figure.PORT_SHARED: _PORT,
}


def table(results: Results) -> Table:
    """Return all figures as one table."""
    made = Table(
        title="SQLite: jobs/s, p50 / p95 / p99 of the latency in ms; ratio: first / this row"
    )
    made.add_column("", no_wrap=True)
    made.add_column("system", no_wrap=True)
    for heading in ("median", "lowest–highest", "ratio"):
        made.add_column(heading, justify="right", no_wrap=True)
    for figure, names in ROWS.items():
        ours = results.series(next(iter(names)), figure)
        for number, (system, name) in enumerate(names.items()):
            cells = _cells(results, system, figure, ours if number else None)
            made.add_row("" if number else figure, name, *cells)
        made.add_section()
    return made


def _cells(
    results: Results, system: System, figure: Figure, ours: Series | None
) -> tuple[str, str, str]:
    series = results.series(system, figure)
    if series is None:
        return results.absent.get(system, "has none"), "", ""
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
        system: {
            figure: [round(value, 3) for value in values] for figure, values in figures.items()
        }
        for system, figures in measured.items()
    }
