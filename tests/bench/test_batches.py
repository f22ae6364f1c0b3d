"""The measurement of one large batch, in small."""

from __future__ import annotations

from pathlib import Path

from bench.batches import measure


def test_a_batch_fires_once_and_in_time(tmp_path: Path) -> None:
    figures = measure(f"sqlite:///{tmp_path / 'jobs.db'}", 300)
    assert figures.is_good, figures
