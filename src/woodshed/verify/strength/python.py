"""Python source as text and tree at once: byte spans of nodes, and whether two sources mean the same. Pure."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate
from types import CodeType

_SOURCE_BYTES = 1_000_000  # longer files are data or generated; each mutant would cost a second to compile
_BOM = b"\xef\xbb\xbf"
_DEPTH = 200  # of the tree: deeper ones are generated, and would exhaust the stack of whoever walks them
_TROUBLE = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)


@dataclass(frozen=True, slots=True)
class Source:
    """``text`` in UTF-8 (without a byte order mark) and its ``tree``; ``parents`` by node."""

    text: bytes
    tree: ast.Module
    starts: list[int]
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    mark: bytes = b""

    def at(self, line: int, column: int) -> int:
        """The offset in ``text`` of what the tree calls line and column."""
        return self.starts[line - 1] + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        """From where to where ``node`` stands in ``text``."""
        place: ast.expr = node  # type: ignore[assignment]  # statements, arguments and handlers have positions too
        return self.at(place.lineno, place.col_offset), self.at(place.end_lineno or 1, place.end_col_offset or 0)

    def of(self, node: ast.AST) -> bytes:
        """The text of ``node``."""
        start, end = self.span(node)
        return self.text[start:end]

    def line(self, offset: int) -> int:
        """The line, from 1, of an offset."""
        return self.text.count(b"\n", 0, offset) + 1


def parse(content: bytes) -> Source | None:
    """``content`` as Python, or None where it is none, is not UTF-8, or is too long."""
    mark = _BOM if content.startswith(_BOM) else b""
    text = content[len(mark) :]
    if len(text) > _SOURCE_BYTES or b"\r" in text.replace(b"\r\n", b"\n"):
        return None
    try:
        if tokenize.detect_encoding(io.BytesIO(content).readline)[0] not in ("utf-8", "utf-8-sig"):
            return None
        tree = ast.parse(text.decode("utf-8"))
    except _TROUBLE:
        return None
    if _depth(tree) > _DEPTH:
        return None
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    starts = [0, *accumulate(len(line) + 1 for line in text.split(b"\n"))]
    return Source(text, tree, starts, parents, mark)


def _depth(tree: ast.AST) -> int:
    level, depth = [tree], 0
    while level and depth <= _DEPTH:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return depth


def compiled(content: bytes) -> CodeType | None:
    """The code of ``content``, or None where it does not compile. Nothing of it is run."""
    try:
        return compile(content, "<variant>", "exec", dont_inherit=True)
    except _TROUBLE:
        return None


def fingerprint(code: CodeType) -> str:
    """A digest of what the interpreter executes, without names of files and numbers of lines.

    Equal fingerprints are equal programs: trivial compiler equivalence (Papadakis and others, ICSE 2015).
    """
    return sha256(repr(_executed(code)).encode("utf-8", "surrogatepass")).hexdigest()


def _executed(code: CodeType) -> tuple[object, ...]:
    constants = tuple(_executed(item) if isinstance(item, CodeType) else _typed(item) for item in code.co_consts)
    table = getattr(code, "co_exceptiontable", b"")
    return (code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags,
            code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_name, table)


def _typed(item: object) -> str:
    """Constants that are equal and differ (1, 1.0, True) differ in repr; a frozenset's order means nothing."""
    if isinstance(item, frozenset):
        return repr(sorted(map(_typed, item)))
    return repr(item)


def same_meaning(first: bytes, second: bytes) -> bool:
    """True where both parse and their trees are equal but for docstrings: comments, blanks and layout do not count."""
    try:
        return _bare(first) == _bare(second)
    except _TROUBLE:
        return False


def _bare(content: bytes) -> str:
    tree = ast.parse(content)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and docstring(node):
            node.body = node.body[1:]
    return ast.dump(_without_imports_for_annotations(tree))


def _without_imports_for_annotations(tree: ast.Module) -> ast.Module:
    """The module without imports that only annotations use, where annotations are not evaluated (PEP 563)."""
    if not any(isinstance(node, ast.ImportFrom) and node.module == "__future__"
               and any(alias.name == "annotations" for alias in node.names) for node in tree.body):
        return tree
    notes = [note for node in ast.walk(tree) for note in (getattr(node, "annotation", None),
             getattr(node, "returns", None)) if isinstance(note, ast.expr)]
    inside = {part for note in notes for part in ast.walk(note)}
    noted = {part.id for part in inside if isinstance(part, ast.Name)}
    used = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name) and part not in inside}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [alias for alias in node.names
                          if (name := alias.asname or alias.name.partition(".")[0]) in used or name not in noted]
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom) or node.names]
    return tree


def docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> ast.Expr | None:
    """The statement that is the docstring of ``node``."""
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return first
    return None


def functions(tree: ast.AST) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions of a module and methods of its classes, with their dotted names; nested functions are left out."""
    body: list[ast.stmt] = getattr(tree, "body", [])
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for name, method in functions(node):
                yield f"{node.name}.{name}", method
