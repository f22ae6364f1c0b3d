"""Rows of figures: every round of each, the medians, and the bars that they are held against."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass
class Report:
    """What was measured: every round of every row."""

    rows: dict[str, list[float]] = field(default_factory=dict)
    verdicts: list[str] = field(default_factory=list)

    def add(self, name: str, value: float) -> None:
        """Keep a round."""
        self.rows.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        """Return the middle of all rounds."""
        return statistics.median(self.rows[name])

    def ratio(self, name: str, than: str) -> float:
        """Return the middle of the ratios of two rows that took turns, round by round."""
        pairs = zip(self.rows[name], self.rows[than], strict=True)
        return statistics.median(one / other for one, other in pairs)

    def show(self, name: str, unit: str, than: str | None = None) -> None:
        """Print a row, beside another one if there is one to compare with."""
        rounds = self.rows[name]
        ratio = f"   {self.median(name) / self.median(than):5.2f} ×" if than else ""
        spread = f"({min(rounds):,.4g}–{max(rounds):,.4g})"
        print(f"  {name:34} {self.median(name):>12,.5g} {unit:7} {spread:22}{ratio}", flush=True)

    def judge(self, bar: str, value: float, *, holds: bool) -> None:
        """Print whether a bar is reached."""
        self.verdicts.append(f"{'PASS' if holds else 'MISS'}  {bar}: {value:.3g}")
        print(self.verdicts[-1], flush=True)
