"""Mutants: the reference with one small mistake on a line that it changed. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import partial

from woodshed.verify.strength import calls, expressions, statements
from woodshed.verify.strength.blocks import Block, blocks, lines_of
from woodshed.verify.strength.edit import Edit
from woodshed.verify.strength.equivalent import equivalent, unseen
from woodshed.verify.strength.lines import line_edits
from woodshed.verify.strength.python import Source, compiled, parse
from woodshed.verify.strength.variant import Candidate, Files, Kind

_OPERATORS = (*expressions.OPERATORS, *calls.OPERATORS, *statements.OPERATORS)


def mutants(start: Mapping[str, bytes], solved: Files, paths: list[str]) -> Iterator[Candidate]:
    """A candidate for each edit of each changed line, in order of place."""
    for path in paths:
        after = solved[path]
        if after is None:
            continue
        parts = blocks(lines_of(start.get(path, b"")), lines_of(after))
        changed = frozenset(line + 1 for part in parts for line in range(part.new_start, part.new_end))
        yield from _of_file(path, after, parts, changed)


def _of_file(path: str, content: bytes, parts: list[Block], changed: frozenset[int]) -> Iterator[Candidate]:
    if path.endswith(".py"):
        source = parse(content)
        if source is None:
            return
        for edit in sorted(set(python_edits(source, changed)), key=_place):
            yield _candidate(path, source.text, edit, parts, partial(_mutated, path, source, edit))
    else:
        for edit in sorted(set(line_edits(path, content, changed)), key=_place):
            yield _candidate(path, content, edit, parts, partial(_replaced, path, content, edit))


def _place(edit: Edit) -> tuple[int, int, str, bytes]:
    return edit.start, edit.end, edit.operator, edit.new


def _candidate(path: str, text: bytes, edit: Edit, parts: list[Block], make: partial[Files | None]) -> Candidate:
    line = text.count(b"\n", 0, edit.start) + 1
    block = next((index for index, part in enumerate(parts) if part.new_start < line <= part.new_end), 0)
    return Candidate(Kind.MUTANT, edit.operator, path, line, block, make)


def _replaced(path: str, content: bytes, edit: Edit) -> Files | None:
    return {path: edit.applied(content)}


def _mutated(path: str, source: Source, edit: Edit) -> Files | None:
    """The file with ``edit``; None where it would not compile: every verifier fails that."""
    content = edit.applied(source.text)
    return None if compiled(content) is None else {path: source.mark + content}


def python_edits(source: Source, changed: frozenset[int]) -> Iterator[Edit]:
    """What the operators offer, where all that an edit replaces stands on lines (from 1) in ``changed``."""
    for node in _seen(source.tree):
        for operator in _OPERATORS:
            for edit in operator(source, node):
                first, last = source.line(edit.start), source.line(max(edit.start, edit.end - 1))
                if changed.issuperset(range(first, last + 1)) and not equivalent(source, node, edit):
                    yield edit


def _seen(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes whose change a test could notice, parents first."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not unseen(node, child):
            yield from _seen(child)
