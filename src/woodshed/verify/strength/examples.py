"""The examples that whoever solves a task can see: calls with literal arguments and what they should give. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

_TEXT = 200_000  # characters of all texts that are looked at
_SPAN = 1_000  # characters that one call may take
_LINE = 300  # characters that its result may take
_CALLS = 200
_EQUAL = re.compile(r"assert_?[eE]quals?\(\s*[\w.]*\Z")  # unittest: assertEqual(f(1), 2)
_SECOND = re.compile(r"\s*,\s*")
_BRACKET = re.compile(r"[()\[\]{}]")
_RESULT = re.compile(
    r"[\s`'\")]*(?:==|===|=>|->|➞|→|=|is|returns?|should (?:return|be|give)|must (?:return|be)|gives|yields|:)\s*`?"
    r"|`?[ \t]*\r?\n[ \t]*(?!>>>|\.\.\.|\s*$)",
)


@dataclass(frozen=True, slots=True)
class Example:
    """``name(*arguments)`` is said to give ``result``; all as source text of literals."""

    name: str
    arguments: tuple[str, ...]
    result: str


def examples_of(texts: Iterable[str], names: Iterable[str]) -> list[Example]:
    """The examples in ``texts`` of functions called ``names``, in order, each once."""
    wanted = sorted({name for name in names if name.isidentifier()})
    if not wanted:
        return []
    call = re.compile(rf"(?<![\w])({'|'.join(map(re.escape, wanted))})\s*\(")
    text = "\n\n".join(texts)[:_TEXT]
    return list(dict.fromkeys(_found(text, call)))


def _found(text: str, call: re.Pattern[str]) -> Iterator[Example]:
    for match in islice(call.finditer(text), _CALLS):
        end = _closing(text, match.end() - 1)
        if end is None:
            continue
        arguments = _arguments(text[match.start() : end])
        link = (_SECOND if _EQUAL.search(text, max(0, match.start() - 60), match.start()) else _RESULT).match(text, end)
        if arguments is None or link is None:
            continue
        result = _literal(text[link.end() : link.end() + _LINE])
        if result is not None:
            yield Example(match[1], arguments, result)


def _closing(text: str, at: int) -> int | None:
    """Behind the bracket that closes the one at ``at``, not looking into strings too closely."""
    depth = 0
    for bracket in _BRACKET.finditer(text, at, at + _SPAN):
        depth += 1 if bracket[0] in "([{" else -1
        if depth == 0:
            return bracket.end()
    return None


def _arguments(text: str) -> tuple[str, ...] | None:
    tree = _expression(text)
    if not isinstance(tree, ast.Call) or tree.keywords or not all(map(_is_literal, tree.args)):
        return None
    return tuple(ast.unparse(argument) for argument in tree.args)


def _literal(text: str) -> str | None:
    """The longest literal with which the line begins."""
    line = text.split("\n", 1)[0].strip()
    for end in range(len(line), 0, -1):
        if end < len(line) and line[end].isalnum() and line[end - 1].isalnum():
            continue
        tree = _expression(line[:end])
        if isinstance(tree, ast.Tuple) and tree.elts and tree.elts[0].col_offset == tree.col_offset:
            tree = tree.elts[0]  # no brackets of its own: assert f(1) == 2, "a message"
        if tree is not None and _is_literal(tree):
            return ast.unparse(tree)
    return None


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip().rstrip(".,;"), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True
