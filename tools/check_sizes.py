"""Keep the source in small pieces: fail when a file or a function is over its limit.

Measured over src/trellis. A function counts from its `def` to its last line, docstring included.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LIMIT = 500
FUNCTION_LIMIT = 50
SHOWN = 10

# "src/trellis/path.py" or "src/trellis/path.py:Class.function" → why it may be larger.
EXCEPTIONS: dict[str, str] = {
    "src/trellis/errors.py": "the tree of all exceptions is read, and drawn, as one",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A file or a function, and its length."""

    name: str
    lines: int


def functions(node: ast.AST, prefix: str) -> Iterator[Piece]:
    """Yield every function below `node`, nested ones too, with its dotted name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            end = child.end_lineno or child.lineno
            yield Piece(f"{prefix}{child.name}", end - child.lineno + 1)
            yield from functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from functions(child, f"{prefix}{child.name}.")
        else:
            yield from functions(child, prefix)


def measure(source: Path) -> tuple[list[Piece], list[Piece]]:
    """Return the files and the functions below `source`."""
    files: list[Piece] = []
    found: list[Piece] = []
    for path in sorted(source.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT).as_posix()
        files.append(Piece(name, len(text.splitlines())))
        found.extend(functions(ast.parse(text, name), f"{name}:"))
    return files, found


def problems(kind: str, pieces: Sequence[Piece], limit: int) -> Iterator[str]:
    """Yield a sentence for each piece that is over the limit."""
    for piece in pieces:
        if piece.lines > limit and piece.name not in EXCEPTIONS:
            yield f"{piece.name} has {piece.lines} lines; a {kind} may have {limit}"


def longest(pieces: Sequence[Piece]) -> int:
    """Return the length of the largest piece, 0 of nothing."""
    return max((piece.lines for piece in pieces), default=0)


def show_largest(kind: str, pieces: Sequence[Piece]) -> None:
    """Print the largest pieces, largest first."""
    print(f"largest {kind}:")
    for piece in sorted(pieces, key=lambda piece: -piece.lines)[:SHOWN]:
        print(f"  {piece.lines:5}  {piece.name}")


def main() -> int:
    """Measure, report, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--verbose", action="store_true", help="list the largest pieces")
    verbose: bool = parser.parse_args().verbose
    files, found = measure(ROOT / "src" / "trellis")
    broken = [
        *problems("file", files, FILE_LIMIT),
        *problems("function", found, FUNCTION_LIMIT),
    ]
    names = {piece.name for piece in (*files, *found)}
    broken += [f"{name} is excepted but does not exist" for name in EXCEPTIONS.keys() - names]
    if verbose or broken:
        show_largest("files", files)
        show_largest("functions", found)
    print(
        f"{len(files)} files, the largest has {longest(files)} lines;"
        f" {len(found)} functions, the largest has {longest(found)} lines"
    )
    for sentence in broken:
        print(sentence, file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
