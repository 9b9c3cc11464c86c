"""Superficial fixes: end states that look like work and are none. Pure.

The start is made to give what the visible examples say, to hide its failure, to return something plausible, or to be
tested no more.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath

from woodshed.verify.protect import START_TEST
from woodshed.verify.strength.blocks import lines_of
from woodshed.verify.strength.examples import Example, examples_of
from woodshed.verify.strength.python import Source, compiled, docstring, functions, parse
from woodshed.verify.strength.variant import Candidate, Files, Kind

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = 4  # of one task; more say the same again
_OPERATORS = ("examples-special-cased", "exception-swallowed", "constant-returned")  # a block each: all are heard
_SKIP_PYTHON = b'import pytest; pytestmark = pytest.mark.skip(reason="flaky")\n'
_TEST_CALL = re.compile(rb"^([ \t]*)(test|it|describe)\(", re.MULTILINE)


def superficial(
    start: Mapping[str, bytes], solved: Files, paths: Sequence[str], examples: Sequence[str]
) -> Iterator[Candidate]:
    """Candidates against the start: functions that the reference changes, and the visible tests."""
    tests = [path for path in sorted(start) if START_TEST.fullmatch(path)]
    visible = [*examples, *(start[path].decode("utf-8", "replace") for path in sorted(start)
                            if path in tests or "test" in PurePosixPath(path).name.lower())]
    left = _FUNCTIONS
    for path in paths:
        before, after = start.get(path), solved[path]
        if path.endswith(".py") and before is not None and after is not None and left > 0:
            found = list(_functions(path, before, after, visible))[:left]
            left -= len(found)
            for candidates in found:
                yield from candidates
    yield from _tests(start, tests)


def _functions(path: str, before: bytes, after: bytes, texts: list[str]) -> Iterator[list[Candidate]]:
    """The candidates of each function of the start that the reference changes."""
    old, new = parse(before), parse(after)
    if old is None or new is None:
        return
    then = {name: ast.dump(node) for name, node in functions(new.tree)}
    docs = [ast.get_docstring(node) or "" for _, node in functions(old.tree)]
    for name, node in functions(old.tree):
        if then.get(name) != ast.dump(node):
            yield list(_of_function(path, old, name, node, [*docs, *texts]))


def _of_function(path: str, source: Source, name: str, node: _Function, texts: list[str]) -> Iterator[Candidate]:
    parameters = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    method = "." in name and not any(getattr(part, "id", "") == "staticmethod" for part in node.decorator_list)
    given = parameters[1:] if method else parameters
    examples = examples_of(texts, [node.name])

    def candidate(operator: str, make: Callable[[Source, _Function], bytes | None]) -> Candidate:
        edited = partial(_edited, path, source, node, make)
        return Candidate(Kind.SUPERFICIAL, operator, path, node.lineno, _OPERATORS.index(operator), edited)

    fitting = [example for example in examples if len(example.arguments) == len(given)]
    if fitting and given:
        yield candidate("examples-special-cased", partial(_special_cased, given, fitting))
    yield candidate("exception-swallowed", _swallowed)
    for text in _constants(examples, given):
        yield candidate("constant-returned", partial(_returning, text))


def _constants(examples: list[Example], given: list[str]) -> list[str]:
    """What a lazy fix might return: the first argument, the commonest results of the examples, or a truth value."""
    common = [result for result, _ in Counter(example.result for example in examples).most_common(1)]
    return [*given[:1], *(common or ["True"])]


def _edited(
    path: str, source: Source, node: _Function, make: Callable[[Source, _Function], bytes | None]
) -> Files | None:
    text = make(source, node)
    return None if text is None or compiled(text) is None else {path: source.mark + text}


def _body(source: Source, node: _Function) -> tuple[int, bytes] | None:
    """Line, from 0, and indent of the body without its docstring; None for a body on the line of ``def``."""
    doc = docstring(node)
    body = node.body[1:] if doc is not None else node.body
    if not body:
        return None
    first = min([body[0].lineno, *(part.lineno for part in getattr(body[0], "decorator_list", []))])
    before = source.text[source.starts[first - 1] : source.at(first, body[0].col_offset)]
    return None if before.strip() else (first - 1, before)


def _inserted(source: Source, node: _Function, statements: Sequence[bytes]) -> bytes | None:
    place = _body(source, node)
    if place is None:
        return None
    line, indent = place
    lines = lines_of(source.text)
    ending = b"\r\n" if lines[line].endswith(b"\r\n") else b"\n"
    return b"".join([*lines[:line], *(indent + statement + ending for statement in statements), *lines[line:]])


def _special_cased(given: list[str], examples: list[Example], source: Source, node: _Function) -> bytes | None:
    """The examples' arguments compared, their results returned."""
    left = _tuple(given)
    return _inserted(source, node, [
        f"if {left} == {_tuple(example.arguments)}: return {example.result}".encode("utf-8", "backslashreplace")
        for example in examples[:20]])


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)},)" if len(items) == 1 else f"({', '.join(items)})"


def _returning(text: str, source: Source, node: _Function) -> bytes | None:
    return _inserted(source, node, [f"return {text}".encode("utf-8", "backslashreplace")])


def _swallowed(source: Source, node: _Function) -> bytes | None:
    """The body in ``try``, any exception answered with None. Lines inside long strings keep their beginnings."""
    place = _body(source, node)
    if place is None:
        return None
    first, indent = place
    lines = lines_of(source.text)
    last = node.end_lineno or len(lines)
    inside = {line for part in ast.walk(node) if isinstance(part, ast.Constant | ast.JoinedStr)
              for line in range(part.lineno, part.end_lineno or 0)}
    step = b"\t" if b"\t" in indent else b"    "
    ending = b"\r\n" if lines[first].endswith(b"\r\n") else b"\n"
    body = [line if first + number in inside or not line.strip() else step + line
            for number, line in enumerate(lines[first:last])]
    if body and not body[-1].endswith(b"\n"):
        body[-1] += ending
    closing = [indent + b"except Exception:" + ending, indent + step + b"return None" + ending]
    return b"".join([*lines[:first], indent + b"try:" + ending, *body, *closing, *lines[last:]])


def _tests(start: Mapping[str, bytes], tests: list[str]) -> Iterator[Candidate]:
    """All visible tests deleted; all of them skipped."""
    if not tests:
        return
    files: Files = dict.fromkeys(tests)
    yield Candidate(Kind.SUPERFICIAL, "tests-deleted", tests[0], 0, len(_OPERATORS), lambda: files)
    skipped = {path: new for path in tests if (new := _skipped(path, start[path])) != start[path]}
    if skipped:
        yield Candidate(Kind.SUPERFICIAL, "tests-skipped", min(skipped), 0, len(_OPERATORS), lambda: skipped)


def _skipped(path: str, content: bytes) -> bytes:
    if not path.endswith(".py"):
        return _TEST_CALL.sub(rb"\1\2.skip(", content)
    source = parse(content)
    if source is None or not PurePosixPath(path).name.startswith("test_"):
        return content
    heads = [node for node in source.tree.body
             if (isinstance(node, ast.ImportFrom) and node.module == "__future__") or node is docstring(source.tree)]
    lines = lines_of(source.text)
    at = heads[-1].end_lineno or 0 if heads else 0
    if at and not lines[at - 1].endswith(b"\n"):
        return content
    return source.mark + b"".join([*lines[:at], _SKIP_PYTHON, *lines[at:]])
