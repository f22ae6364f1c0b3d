"""What every test process needs around it: a warden that ends what it started, and signals."""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: The folder of the checkout.
ROOT: Final = next(
    folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file()
)
