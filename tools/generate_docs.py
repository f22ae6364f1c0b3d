"""Write the pages of docs/ that are generated from the code, or check that they are current.

Run as `python -m tools.generate_docs [--check]`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from tools.api_page import render_api
from tools.lifecycle_page import render_markdown
from tools.metrics_page import render_metrics
from tools.options_page import render_options
from tools.rpc_page import render_rpc
from trellis.server import create_app

ROOT = Path(__file__).resolve().parent.parent


def render_openapi() -> str:
    """Return the description of the HTTP API."""
    return json.dumps(create_app().openapi(), indent=1, sort_keys=True)


PAGES: dict[str, Callable[[], str]] = {
    "docs/lifecycle.md": render_markdown,
    "docs/reference/jobs-rpc.md": render_rpc,
    "docs/reference/metrics.md": render_metrics,
    "docs/reference/openapi.json": render_openapi,
    "docs/reference/options.md": render_options,
    "docs/reference/python-api.md": render_api,
}


def outdated() -> dict[str, str]:
    """Return the text of every page that is missing or differs from the code."""
    texts = {name: render().rstrip() + "\n" for name, render in PAGES.items()}
    return {name: text for name, text in texts.items() if stored(ROOT / name) != text}


def stored(path: Path) -> str | None:
    """Return the present text of the file; None if it does not exist."""
    return path.read_text(encoding="utf-8") if path.exists() else None


def main() -> int:
    """Write or check the pages, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    check: bool = parser.parse_args().check
    stale = outdated()
    if check:
        for name in stale:
            print(f"{name} is out of date; run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for name, text in stale.items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(text, encoding="utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
