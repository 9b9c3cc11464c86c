"""What is not worth a mutant: parts of a program that no test could notice, and edits that change nothing. Pure.

Equivalence is undecidable in general (Budd and Angluin, 1982). Here are the common shapes for which it can be seen;
equal programs are found by their code (``python.fingerprint``), and ``docs/strength.md`` names what is left.
"""

from __future__ import annotations

import ast
import builtins

from woodshed.verify.strength.edit import Edit
from woodshed.verify.strength.python import Source

_LOGGERS = frozenset({"log", "logger", "logging", "_log", "_logger", "LOG", "LOGGER", "warnings"})
_MARKS = frozenset({"__all__", "__version__", "__author__", "__slots__", "__doc__"})
_DECLARING = frozenset({"TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "getLogger", "cast", "dataclass"})
WORDING = frozenset({"help", "description", "metavar", "epilog", "doc", "stacklevel", "frozen", "slots", "kw_only"})
"""Keyword arguments for readers and for the author, not for the program."""
_ORDERLESS = frozenset({"set", "frozenset", "sum", "min", "max", "any", "all", "len", "sorted", "Counter"})


def unseen(parent: ast.AST, child: ast.AST) -> bool:
    """True where ``child`` is out of a test's sight.

    Annotations, docstrings, assertions, log calls, messages of exceptions, help texts, exported names, the parts of an
    f-string (their positions are unreliable before Python 3.12; it is mutated as a whole).
    """
    match parent:
        case ast.JoinedStr() | ast.Raise():
            return True
        case ast.arg() | ast.AnnAssign() if child is parent.annotation:
            return True
        case ast.FunctionDef() | ast.AsyncFunctionDef() if child is parent.returns:
            return True
        case ast.If() if child is parent.test:
            return _is_main(parent.test)
    match child:
        case ast.Assert() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=called)):
            return _root(called) in _LOGGERS
        case ast.If(test=test):
            return _name(test) == "TYPE_CHECKING"
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name in _MARKS
        case ast.Call(func=called):
            return _name(called) in _DECLARING
        case ast.keyword(arg=str(name)):
            return name in WORDING
    return type(child).__name__ in _NOTES


_NOTES = frozenset({"TypeAlias", "TypeVar", "ParamSpec", "TypeVarTuple"})  # PEP 695, nodes since Python 3.12


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        if node.attr in _LOGGERS:
            return node.attr
        node = node.value
    return getattr(node, "id", "")


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and _name(test.left) == "__name__"


def equivalent(source: Source, node: ast.AST, edit: Edit) -> bool:
    """True where the edit of ``node`` can be seen to change nothing."""
    match edit.operator:
        case "comparison-boundary":
            return isinstance(node, ast.Compare) and _picks_the_greater(source.parents.get(node), node)
        case "call-removed":
            return isinstance(node, ast.Call) and (_order_is_lost(source.parents.get(node), node) or _is_so(node))
        case "function-swapped":
            return edit.new == b"extend" and isinstance(node, ast.Call) and [*map(_one_sign, node.args)] == [True]
        case "bound-removed" | "bound-moved":
            return isinstance(node, ast.Subscript) and _bound_is_end(source, node, edit)
        case "exception-left-out":
            return isinstance(node, ast.ExceptHandler) and _still_caught(source, node, edit)
    return False


def _picks_the_greater(parent: ast.AST | None, node: ast.Compare) -> bool:
    """``if a > b: b = a``, ``a if a > b else b``, two places swapped: equal values are either way the same.

    Values that are equal and can be told apart (1 and 1.0) are not reckoned with.
    """
    if len(node.ops) != 1:
        return False
    pair = {_dump(node.left), _dump(node.comparators[0])}
    match parent:
        case ast.IfExp(body=body, orelse=other):
            return {_dump(body), _dump(other)} == pair
        case ast.If(body=[ast.Assign(targets=[target], value=value)], orelse=[]):
            return _dumps(target) == pair or {_dump(target), _dump(value)} == pair
        case ast.If(body=[ast.Return(value=ast.expr() as value)], orelse=[ast.Return(value=ast.expr() as other)]):
            return {_dump(value), _dump(other)} == pair
    return False


def _dump(node: ast.AST) -> str:
    return ast.dump(node).replace("Store()", "Load()")


def _dumps(node: ast.expr) -> set[str]:
    return {_dump(part) for part in node.elts} if isinstance(node, ast.Tuple) else set()


def _order_is_lost(parent: ast.AST | None, node: ast.Call) -> bool:
    """``set(sorted(x))``; ``y in set(x)``."""
    wrapper = _name(node.func)
    if isinstance(parent, ast.Call) and node in parent.args and wrapper in ("sorted", "reversed"):
        return _name(parent.func) in _ORDERLESS
    if isinstance(parent, ast.Compare) and node in parent.comparators and wrapper in ("sorted", "reversed", "set"):
        return all(isinstance(relation, ast.In | ast.NotIn) for relation in parent.ops)
    around = _name(parent.func) if isinstance(parent, ast.Call) else ""
    return wrapper == "set" and around in ("set", "frozenset", "min", "max")


def _is_so(node: ast.Call) -> bool:
    """``abs(x % 10)``, ``int(round(x))``: the argument has the property already."""
    match node:
        case ast.Call(func=ast.Name(id="abs"), args=[ast.BinOp(op=ast.Mod(), right=ast.Constant(value=int(by)))]):
            return by > 0
        case ast.Call(func=ast.Name(id="int"), args=[ast.Call(func=ast.Name(id="round"), args=[_]) as inner]):
            return not inner.keywords
        case ast.Call(func=ast.Name(id="int" | "abs"), args=[ast.Call(func=ast.Name(id="len" | "ord"))]):
            return True
    return False


def _one_sign(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) == 1


def _bound_is_end(source: Source, node: ast.Subscript, edit: Edit) -> bool:
    """``x[0:]`` without 0, ``x[:len(x)]`` without its end or with one beyond, ``x[::1]`` without its step."""
    part = node.slice
    if not isinstance(part, ast.Slice):
        return False
    for bound, plain in ((part.lower, 0), (part.step, 1)):
        if bound is not None and source.span(bound) == (edit.start, edit.end):
            return isinstance(bound, ast.Constant) and bound.value == plain
    whole = isinstance(part.upper, ast.Call) and _name(part.upper.func) == "len" and len(part.upper.args) == 1
    if not whole or not isinstance(part.upper, ast.Call):
        return False
    return _dump(part.upper.args[0]) == _dump(node.value) and not edit.new.endswith(b"- 1")


def _still_caught(source: Source, node: ast.ExceptHandler, edit: Edit) -> bool:
    """A type left out of several that another one of them includes."""
    if not isinstance(node.type, ast.Tuple):
        return False
    kept = {name.strip() for name in edit.new.decode().strip("(),").split(",")}
    gone = [_name(part) for part in node.type.elts if source.of(part).decode() not in kept]
    kinds = [getattr(builtins, name, None) for name in kept]
    return any(isinstance(kind := getattr(builtins, name, None), type) and any(
        isinstance(other, type) and issubclass(kind, other) for other in kinds) for name in gone)
