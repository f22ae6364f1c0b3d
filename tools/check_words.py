"""Keep the prose plain: fail when the source or the documents use too many of certain words.

The words put a person or a turn of phrase where a reader needs the name of a component. Counted
over src (`.py` and `.sql`) and over docs, README, CHANGELOG and CONTRIBUTING, per 1,000 lines.

Run as `python -m tools.check_words [--list]`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Occurrences per 1,000 lines.
LIMITS = {"source": 1.0, "docs": 1.0}
WORDS = (
    *("whoever", "nobody", "somebody", "everybody", "anybody", "whatever", "meanwhile", "lately"),
    *("anew", "so many", "so long", "for ever", "by itself", "of its own", "of ours"),
)
SHOWN = 10
#: The words of a phrase may stand in two lines of a comment.
_PATTERN = re.compile(
    r"\b(?:" + "|".join(word.replace(" ", r"\s+(?:(?:#|--)\s*)?") for word in WORDS) + r")\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Text:
    """A file, its length, and the words found in it with their lines."""

    name: str
    lines: int
    found: list[tuple[int, str]]


def read(path: Path) -> Text:
    """Look for the words in one file."""
    text = path.read_text(encoding="utf-8")
    found = [
        (text.count("\n", 0, match.start()) + 1, " ".join(match[0].split()))
        for match in _PATTERN.finditer(text)
    ]
    return Text(path.relative_to(ROOT).as_posix(), len(text.splitlines()), found)


def files() -> dict[str, list[Path]]:
    """Return the files of each part."""
    source = ROOT / "src"
    pages = [ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")]
    return {
        "source": sorted([*source.rglob("*.py"), *source.rglob("*.sql")]),
        "docs": [*pages, *sorted((ROOT / "docs").rglob("*.md"))],
    }


def report(part: str, texts: list[Text], *, show_lines: bool) -> bool:
    """Print what was found in a part; return whether it is within its limit."""
    count = sum(len(text.found) for text in texts)
    lines = sum(text.lines for text in texts)
    share = round(1000 * count / max(lines, 1), 1)
    limit = LIMITS[part]
    print(f"{part}: {count} words in {lines} lines, {share:g} per 1,000; the limit is {limit:g}")
    worst = sorted((text for text in texts if text.found), key=lambda text: -len(text.found))
    for text in worst[: None if show_lines else SHOWN] if show_lines or share > limit else ():
        words = Counter(word.casefold() for _, word in text.found)
        print(f"  {len(text.found):4}  {text.name}: {', '.join(words)}")
        if show_lines:
            print(*(f"        line {line}: {word}" for line, word in text.found), sep="\n")
    return share <= limit


def main() -> int:
    """Count, report, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print every file and line")
    show_lines: bool = parser.parse_args().list
    results = [
        report(part, [read(path) for path in paths], show_lines=show_lines)
        for part, paths in files().items()
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
