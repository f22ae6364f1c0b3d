"""The text of `docs/reference/python-api.md`: every public name, its signature and first sentence.

It is read from the source, where annotations and overloads are as they were written.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Final

import trellis
from tools.options_page import comment_above, first_paragraph
from trellis import archive, errors, telemetry, testing
from trellis.archive import ArchivedJob, NdjsonArchive
from trellis.operations.batches import Batches
from trellis.operations.schedules import Schedules
from trellis.worker.session import Lease

_HEADER: Final = """\
# Python API

Generated from the code by `make docs`; do not edit.

Every name that can be imported from `trellis`, `trellis.testing`, `trellis.archive` and
`trellis.telemetry`, with signatures and the first sentences of the docstrings.
[What is public](public-api.md) says what is covered; [options](options.md) has the keywords of
`**options`, their defaults, and the codes of errors. *Also* names the twin for code without an
event loop.
"""
#: Where a name is defined, by the beginning of its module, and the title of its section.
_SECTIONS: Final = {
    "trellis.service": "Services",
    "trellis.declaration": "Declaring job types",
    "trellis.client": "Creating and following jobs",
    "trellis.worker": "Inside a handler",
    "trellis.operations": "Operating",
    "trellis.insight": "What is known about jobs",
    "trellis.core": "Values",
    "trellis.errors": "Errors",
}
#: Classes without a public name that public attributes return, by the section they belong to.
_PARTS: Final[dict[str, tuple[type, ...]]] = {
    "trellis.worker": (Lease,),
    "trellis.operations": (Batches, Schedules),
}
#: Modules whose classes programs make themselves, by the beginning of their names.
_MADE: Final = (
    "trellis.service", "trellis.declaration", "trellis.archive", "trellis.testing.clock",
)  # fmt: skip
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def render_api() -> str:
    """Return the text of the page."""
    return "\n".join((_HEADER, *_own_sections(), *_other_modules()))


def _own_sections() -> Iterator[str]:
    homes = dict(homes_of(trellis))
    for start, title in _SECTIONS.items():
        yield from (f"## {title}", "")
        for name, home in homes.items():
            if home.startswith(start):
                yield from _entry(name, getattr(trellis, name), home)
        for kind in _PARTS.get(start, ()):
            yield from _entry(kind.__name__, kind, kind.__module__)


def _other_modules() -> Iterator[str]:
    for module, names in (
        (testing, homes_of(testing)),
        (archive, [(each.__name__, each.__module__) for each in (ArchivedJob, NdjsonArchive)]),
        (telemetry, [(name, telemetry.__name__) for name in ("enable", "disable")]),
    ):
        yield from (f"## {module.__name__}", "")
        for name, home in names:
            yield from _entry(name, getattr(module, name), home)


def homes_of(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield the public names of a package with the modules that define them."""
    for block in _parse(module).body:
        if isinstance(block, ast.If):
            for each in block.body:
                if isinstance(each, ast.ImportFrom):
                    yield from ((alias.name, each.module or "") for alias in each.names)


# -- entries -----------------------------------------------------------------------------------


def _entry(name: str, value: object, home: str) -> Iterator[str]:
    """Yield the section of a class, or of another name."""
    yield from (f"### {name}", "")
    if inspect.isclass(value):
        yield from _class(value, home)
        return
    node = _definition(importlib.import_module(home), name)
    if isinstance(node, _Function):
        yield from (f"`{_shown(node)}`", "", first_paragraph(value), "")
    elif node is not None:
        yield from (f"`{ast.unparse(node)}`", "")


def _class(kind: type, home: str) -> Iterator[str]:
    bases = [each.__name__ for each in kind.__bases__ if _is_named(each)]
    above = f" Extends {', '.join(f'`{each}`' for each in bases)}." if bases else ""
    node = _definition(sys.modules[home], kind.__name__)
    if home.startswith(_MADE) and isinstance(node, ast.ClassDef):
        for each in node.body:
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                yield from (f"`{kind.__name__}({_arguments(each)})`", "")
    yield from (f"{first_paragraph(kind)}{above}", "")
    lines = list(_members(kind, home))
    if lines:
        yield from (*lines, "")


def _is_named(kind: type) -> bool:
    return kind.__name__ in trellis.__all__ or kind.__module__ == errors.__name__


def _members(kind: type, home: str) -> Iterator[str]:
    """Yield the members of a class and of the ones below it that have no section of their own."""
    seen: set[str] = set()
    for each in kind.__mro__:
        if each is not kind and each.__name__ in trellis.__all__:
            return
        module = sys.modules[home if each is kind else each.__module__]
        node = _definition(module, each.__name__) if module.__name__.startswith("trellis") else None
        found: dict[str, tuple[list[str], str]] = {}
        for statement in node.body if isinstance(node, ast.ClassDef) else ():
            for name, signature, meaning in _member(kind, statement, _source(module)):
                found.setdefault(name, ([], meaning))[0].append(signature)
        for name, (signatures, meaning) in found.items():
            if name not in seen:
                # After overloads comes their common implementation.
                shown = " or ".join(f"`{each}`" for each in signatures[:-1] or signatures)
                yield f"- {shown}" + (f": {meaning}" if meaning else "")
        seen |= found.keys()


def _member(kind: type, node: ast.stmt, lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, signature and meaning of what a statement in a class defines."""
    match node:
        case ast.FunctionDef(name="__init__"):
            for each in ast.walk(node):
                yield from _attribute(each, lines)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            is_twin = name.endswith("_sync") and hasattr(kind, name.removesuffix("_sync"))
            if not name.startswith("_") and not is_twin:
                yield name, _shown(node), first_paragraph(getattr(kind, name)) + _twin(kind, name)
        case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
            annotation = ast.unparse(node.annotation)
            if not annotation.startswith("ClassVar"):
                yield name, f"{name}: {annotation}", comment_above(lines, node.lineno)
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant()) if name.isupper():
            yield name, ast.unparse(node), comment_above(lines, node.lineno)
        case _:
            pass


def _attribute(node: ast.AST, lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the attribute that a statement in `__init__` sets and a comment describes."""
    match node:
        case (
            ast.Assign(targets=[ast.Attribute(attr=name)])
            | ast.AnnAssign(target=ast.Attribute(attr=name))
        ) if not name.startswith("_"):
            comment = comment_above(lines, node.lineno)
            if comment:
                yield name, name, comment
        case _:
            pass


def _shown(node: _Function) -> str:
    """Write a method as it is called, a property as an attribute."""
    decorators = " ".join(ast.unparse(each) for each in node.decorator_list)
    returned = _returned(node)
    if "property" in decorators:
        return f"{node.name}: {returned}"
    call = f"{node.name}({_arguments(node)}) -> {returned}"
    if "async_block" in decorators:
        return f"async with {call}"
    if returned.startswith("AsyncIterator"):
        return f"async for {call}"
    return f"await {call}" if isinstance(node, ast.AsyncFunctionDef) else call


def _arguments(node: _Function) -> str:
    return re.sub(r"^(self|cls)(, /$|, |$)", "", ast.unparse(node.args))


def _returned(node: _Function) -> str:
    return "None" if node.returns is None else ast.unparse(node.returns)


def _twin(kind: type, name: str) -> str:
    return f" Also `{name}_sync`." if hasattr(kind, f"{name}_sync") else ""


# -- reading the source ------------------------------------------------------------------------


@cache
def _parse(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


@cache
def _source(module: ModuleType) -> list[str]:
    return inspect.getsource(module).splitlines()


def _definition(module: ModuleType, name: str) -> ast.stmt | None:
    """Return the statement of a module that defines a name."""
    for each in _parse(module).body:
        match each:
            case (
                ast.ClassDef(name=found)
                | ast.FunctionDef(name=found)
                | ast.Assign(targets=[ast.Name(id=found)])
                | ast.AnnAssign(target=ast.Name(id=found))
            ) if found == name:
                return each
            case _:
                pass
    return None
