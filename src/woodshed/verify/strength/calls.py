"""Mutation operators over Python calls. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from woodshed.verify.strength.edit import Edit
from woodshed.verify.strength.python import Source

# mutmut (string methods) and universalmutator (built-in functions): names that take and give the same kind of thing.
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_METHODS = {"lower": "upper", "upper": "lower", "lstrip": "rstrip", "rstrip": "lstrip", "strip": "lstrip",
            "find": "rfind", "rfind": "find", "index": "rindex", "rindex": "index", "ljust": "rjust", "rjust": "ljust",
            "startswith": "endswith", "endswith": "startswith", "removeprefix": "removesuffix",
            "removesuffix": "removeprefix", "partition": "rpartition", "rpartition": "partition",
            "append": "extend", "union": "intersection", "intersection": "union", "issubset": "issuperset",
            "issuperset": "issubset"}
_STRINGY = frozenset({"index", "rindex"})  # lists have no rindex: killed at once, and told apart by nothing else
_WRAPPERS = {"abs": b"", "sorted": b"list", "reversed": b"list", "set": b"list", "round": b"", "int": b"", "len": None}
_COMMUTATIVE = frozenset({"min", "max", "gcd", "lcm", "hypot", "isclose", "union", "intersection",
                          "symmetric_difference", "print", "isinstance", "issubclass"})
# Keywords with these values say what holds without them.
_DEFAULTS: dict[str, object] = {"reverse": False, "key": None, "check": False, "encoding": "utf-8", "errors": "strict",
                                "sep": " ", "end": "\n", "strict": False, "indent": None, "flush": False}


def call(source: Source, node: ast.AST) -> Iterator[Edit]:
    """Names swapped for their counterparts, wrappers removed, arguments swapped or left out, ranges off by one."""
    if not isinstance(node, ast.Call):
        return
    yield from _renamed(source, node)
    yield from _unwrapped(source, node)
    yield from _swapped(source, node)
    yield from _keyword_left_out(source, node)
    yield from _range(source, node)


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _renamed(source: Source, node: ast.Call) -> Iterator[Edit]:
    start, end = source.span(node.func)
    if isinstance(node.func, ast.Name) and node.func.id in _NAMES:
        yield Edit("function-swapped", start, end, _NAMES[node.func.id].encode())
    elif isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS and node.func.attr not in _STRINGY:
        size = len(node.func.attr.encode())
        yield Edit("function-swapped", end - size, end, _METHODS[node.func.attr].encode())


def _unwrapped(source: Source, node: ast.Call) -> Iterator[Edit]:
    """``abs(x)`` becomes ``x``; ``sorted(x)`` the same elements in the order they have."""
    if not isinstance(node.func, ast.Name) or len(node.args) != 1 or isinstance(node.args[0], ast.Starred):
        return
    instead = _WRAPPERS.get(node.func.id)
    if instead is not None:
        yield Edit("call-removed", *source.span(node), instead + b"(" + source.of(node.args[0]) + b")")


def _swapped(source: Source, node: ast.Call) -> Iterator[Edit]:
    """Two neighbouring arguments in each other's place (Rice and others, OOPSLA 2017: a common mistake)."""
    if _called(node) in _COMMUTATIVE or any(isinstance(argument, ast.Starred) for argument in node.args):
        return
    for first, second in zip(node.args, node.args[1:], strict=False):
        (start, middle), (after, end) = source.span(first), source.span(second)
        if ast.dump(first) != ast.dump(second) and not isinstance(first, ast.GeneratorExp):
            new = source.of(second) + source.text[middle:after] + source.of(first)
            yield Edit("arguments-swapped", start, end, new)


def _keyword_left_out(source: Source, node: ast.Call) -> Iterator[Edit]:
    for index, keyword in enumerate(node.keywords):
        if keyword.arg is None or _is_default(keyword):
            continue
        start, end = source.span(keyword)
        others = [*node.args, *(other for other in node.keywords if other is not keyword)]
        before = [other for other in others if source.span(other)[1] <= start]
        if before:
            start = source.span(before[-1])[1]
            start += _closing(source.text[start : source.span(keyword)[0]])
        elif index + 1 < len(node.keywords):
            end = source.span(node.keywords[index + 1])[0]
        yield Edit("argument-left-out", start, end, b"")


def _closing(gap: bytes) -> int:
    """How much of the text between two arguments belongs to the first: brackets around it."""
    comma = gap.find(b",")
    return max(comma, 0)


def _is_default(keyword: ast.keyword) -> bool:
    if keyword.arg not in _DEFAULTS or not isinstance(keyword.value, ast.Constant):
        return False
    default, value = _DEFAULTS[keyword.arg], keyword.value.value
    same = value.lower() == default if isinstance(value, str) and isinstance(default, str) else value == default
    return same and type(value) is type(default)


def _range(source: Source, node: ast.Call) -> Iterator[Edit]:
    """The end of a range moved by one, where it is no constant (those have mutants of their own)."""
    if not isinstance(node.func, ast.Name) or node.func.id != "range" or not node.args:
        return
    stop = node.args[0] if len(node.args) == 1 else node.args[1]
    if isinstance(stop, ast.Starred | ast.Constant | ast.BinOp):
        return
    for sign in (b" + 1", b" - 1"):
        yield Edit("range-moved", *source.span(stop), source.of(stop) + sign)


OPERATORS = (call,)
