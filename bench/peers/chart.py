"""The chart for the docs: one SVG with a panel per figure, a bar per system, the best first.

It is drawn from the same medians as the table, with a line from the lowest to the highest round.
A system without the figure keeps a row with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape

from bench.figures import Series
from bench.peers.figures import COSTS, Figure, Results, spread

PANELS: Final = (
    Figure.DRAIN, Figure.DRAIN_2, Figure.MANY, Figure.CALLERS, Figure.LATENCY, Figure.CPU,
)  # fmt: skip
_WIDTH: Final = 900
_COLUMN: Final = 450
_NAME: Final = 120
_BAR: Final = 220
_ROW: Final = 20
_HEAD: Final = 44
_OURS, _THEIRS, _INK, _FAINT = "#2f7d4f", "#9fb3c8", "#1f2933", "#7b8794"
_STYLE: Final = 'font-family="system-ui, sans-serif" font-size="12"'


def draw(results: Results) -> str:
    """Return the chart as SVG."""
    height = _HEAD + _ROW * len(results.systems) + _ROW
    rows = (len(PANELS) + 1) // 2
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {rows * height}" {_STYLE}>',
        f'<rect width="{_WIDTH}" height="{rows * height}" fill="#ffffff"/>',
    ]
    for number, figure in enumerate(PANELS):
        lines.append(
            f'<g transform="translate({_COLUMN * (number % 2) + 12} {number // 2 * height})">'
        )
        lines += [*_panel(results, figure), "</g>"]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(results: Results, figure: Figure) -> Iterator[str]:
    less = " (less is better)" if figure in COSTS else ", jobs/s"
    name = f"{figure}{', p50' if figure is Figure.LATENCY else ''}{less}"
    yield _text(0, 26, name, _INK, weight="bold")
    found = {who: results.series(who, figure) for who in results.systems}
    longest = max((max(series.middles) for series in found.values() if series), default=1.0)
    for number, who in enumerate(_sorted(found, figure)):
        y = _HEAD + number * _ROW
        yield _text(0, y + 12, who, _INK)
        series = found[who]
        if series is None:
            yield _text(_NAME, y + 12, results.why_missing(who, figure)[:44], _FAINT)
        else:
            yield from _bar(y, series, longest, _OURS if who == results.ours else _THEIRS)


def _sorted(found: dict[str, Series | None], figure: Figure) -> Sequence[str]:
    def rank(who: str) -> float:
        series = found[who]
        if series is None:
            return math.inf
        return series.median if figure in COSTS else -series.median

    return sorted(found, key=rank)


def _bar(y: int, series: Series, longest: float, colour: str) -> Iterator[str]:
    def place(value: float) -> float:
        return round(_NAME + _BAR * value / longest, 1)

    low, high = spread(series)
    end = place(series.median)
    yield f'<rect x="{_NAME}" y="{y}" width="{end - _NAME:.1f}" height="14" fill="{colour}"/>'
    yield (
        f'<line x1="{place(low)}" x2="{place(high)}" y1="{y + 7}" y2="{y + 7}" '
        f'stroke="{_INK}" stroke-width="1.5"/>'
    )
    digits = 0 if series.median >= 100 else 2 if series.median >= 1 else 3
    yield _text(_NAME + _BAR + 8, y + 12, f"{series.median:,.{digits}f}", _INK)


def _text(x: float, y: float, words: str, colour: str, weight: str = "normal") -> str:
    where = f'x="{x}" y="{y}" fill="{colour}" font-weight="{weight}"'
    return f"<text {where}>{escape(words)}</text>"
