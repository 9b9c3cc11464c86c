"""Test ids of data sets as ids of our reports: ``dotted.module.Class::name``, which pytest's JUnit XML has."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property


def report_id(node: str) -> str | None:
    """The report's id of pytest's node id ``path/test_x.py::Class::test[param]``; None for what is no such id.

    Also for one that was cut: data sets made of console output lose parameters behind a blank.
    """
    address, bracket, parameters = node.partition("[")
    path, *names = address.split("::")
    if not names or not path.endswith(".py") or not all(part.strip() for part in (path, *names)):
        return None
    if (bracket and not parameters.endswith("]")) or any(ord(sign) < 32 for sign in node):
        return None
    module = path.removesuffix(".py").replace("/", ".")
    return f"{'.'.join((module, *names[:-1]))}::{names[-1]}{bracket}{parameters}"


def file_of(node: str) -> str:
    """The path in a node id."""
    return node.partition("[")[0].partition("::")[0]


class Defined:
    """Which functions and methods the test files define, to find the file of a name that says none."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    @cached_property
    def _names(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path, content in self._files.items():
            for name in dict.fromkeys(_functions(content)):
                found.setdefault(name, []).append(path)
        return found

    def nodes(self, name: str) -> list[str]:
        """Node ids of ``Class.test[param]`` or ``test[param]``, one for each file that defines it."""
        bare, bracket, parameters = name.partition("[")
        return [f"{path}::{bare.replace('.', '::')}{bracket}{parameters}" for path in self._names.get(bare, [])]


def mapped(names: Iterable[str], defined: Defined) -> tuple[dict[str, str], list[str]]:
    """(report id → path of its file, names that are no id here)."""
    found: dict[str, str] = {}
    unknown = []
    for name in names:
        nodes = [name] if "::" in name else defined.nodes(name)
        ids = {made: file_of(node) for node in nodes if (made := report_id(node)) is not None}
        if not ids:
            unknown.append(name)
        found |= ids
    return found, unknown


def _functions(content: bytes) -> Iterator[str]:
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    pending: list[tuple[str, ast.AST]] = [("", tree)]
    while pending:
        prefix, node = pending.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name
            elif isinstance(child, ast.ClassDef):
                pending.append((f"{prefix}{child.name}.", child))
            elif isinstance(child, ast.If | ast.Try | ast.With):
                pending.append((prefix, child))
