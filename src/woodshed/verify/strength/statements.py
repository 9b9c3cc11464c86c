"""Mutation operators over Python statements. Pure."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from woodshed.verify.strength.edit import Edit
from woodshed.verify.strength.expressions import _steers_loop
from woodshed.verify.strength.python import Source

_UNSEEN_DECORATORS = frozenset({"wraps", "cache", "lru_cache", "override", "overload", "abstractmethod", "final",
                                "no_type_check", "dataclass", "total_ordering", "staticmethod", "runtime_checkable"})


def removal(source: Source, node: ast.AST) -> Iterator[Edit]:
    """SDL: a statement becomes ``pass``; the only assignment to a local name gives it None."""
    match node:
        case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom()) | ast.Delete() | ast.Raise():
            yield Edit("statement-removed", *source.span(node), b"pass")
        case ast.AugAssign():
            if not _steers_loop(source, node, node.target):
                yield Edit("statement-removed", *source.span(node), b"pass")
        case ast.Assign():
            yield from _assignment(source, node)
        case ast.Return() if not _last_of_function(source, node):
            yield Edit("statement-removed", *source.span(node), b"pass")


def _assignment(source: Source, node: ast.Assign) -> Iterator[Edit]:
    if any(_steers_loop(source, node, target) for target in node.targets):
        return
    names = [target.id for target in node.targets if isinstance(target, ast.Name)]
    if len(names) == len(node.targets) and not _bound_before(source, node, set(names)):
        if not isinstance(node.value, ast.Constant):
            yield Edit("value-none", *source.span(node.value), b"None")
    else:
        yield Edit("statement-removed", *source.span(node), b"pass")


def _bound_before(source: Source, node: ast.stmt, names: set[str]) -> bool:
    """All ``names`` have a value already where the function (or module) comes to ``node``."""
    scope = source.parents.get(node)
    while scope is not None and not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
        scope = source.parents.get(scope)
    if scope is None:
        return False
    before = {part.id for part in ast.walk(scope) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
              and part.lineno < node.lineno}
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        before |= {argument.arg for argument in ast.walk(scope.args) if isinstance(argument, ast.arg)}
    return names <= before


def _last_of_function(source: Source, node: ast.stmt) -> bool:
    parent = source.parents.get(node)
    return isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and parent.body[-1] is node


def returned(source: Source, node: ast.AST) -> Iterator[Edit]:
    """Null returns (PIT): None instead of the value."""
    if isinstance(node, ast.Return) and node.value is not None and not _plain(node.value):
        yield Edit("return-none", *source.span(node.value), b"None")


def _plain(node: ast.expr) -> bool:
    """None, or a truth value: that has a mutant of its own."""
    return isinstance(node, ast.Constant) and isinstance(node.value, bool | None)


def jump(source: Source, node: ast.AST) -> Iterator[Edit]:
    """BCR: ``break`` becomes ``continue`` and the other way round, where the loop still ends."""
    if isinstance(node, ast.Continue):
        yield Edit("jump-swapped", *source.span(node), b"break")
        yield Edit("statement-removed", *source.span(node), b"pass")
    elif isinstance(node, ast.Break) and _counted(source, node) and not _only_saves_time(source, node):
        yield Edit("jump-swapped", *source.span(node), b"continue")


def _counted(source: Source, node: ast.Break) -> bool:
    return isinstance(_loop_of(source, node), ast.For)


def _loop_of(source: Source, node: ast.AST) -> ast.AST | None:
    above = source.parents.get(node)
    while above is not None and not isinstance(above, ast.For | ast.AsyncFor | ast.While):
        above = source.parents.get(above)
    return above


def _only_saves_time(source: Source, node: ast.Break) -> bool:
    """``if found: flag = True; break`` as all of a loop: going on sets the flag again."""
    branch, loop = source.parents.get(node), _loop_of(source, node)
    if not isinstance(branch, ast.If) or not isinstance(loop, ast.For) or loop.body != [branch] or loop.orelse:
        return False
    return not branch.orelse and all(
        isinstance(part, ast.Assign) and isinstance(part.value, ast.Constant) for part in branch.body[:-1])


def exception(source: Source, node: ast.AST) -> Iterator[Edit]:
    """EHD and its like: a handler that catches nothing, one type of several left out, another type raised."""
    if isinstance(node, ast.ExceptHandler) and node.type is not None:
        if isinstance(node.type, ast.Tuple) and len(node.type.elts) > 1:
            for left_out in node.type.elts:
                rest = [source.of(part) for part in node.type.elts if part is not left_out]
                yield Edit("exception-left-out", *source.span(node.type), b"(" + b", ".join(rest) + b",)")
        else:
            yield Edit("exception-left-out", *source.span(node.type), b"()")
    elif isinstance(node, ast.Raise) and node.exc is not None:
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if isinstance(raised, ast.Name) and raised.id[:1].isupper():
            yield Edit("exception-type", *source.span(raised), _unlike(raised.id))


def _unlike(name: str) -> bytes:
    """An exception that no handler of ``name`` catches by kinship."""
    kind = getattr(builtins, name, None)
    related = isinstance(kind, type) and (issubclass(kind, RuntimeError) or issubclass(RuntimeError, kind))
    return b"LookupError" if related else b"RuntimeError"


def decorator(source: Source, node: ast.AST) -> Iterator[Edit]:
    """DDL: a decorator left out, unless what it does is out of a test's sight."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for part in node.decorator_list:
        named = part.func if isinstance(part, ast.Call) else part
        last = named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")
        if last in _UNSEEN_DECORATORS:
            continue
        start, end = source.span(part)
        line_start, line_end = source.text.rfind(b"\n", 0, start) + 1, source.text.find(b"\n", end) + 1
        if source.text[line_start:start].strip() == b"@" and line_end:
            yield Edit("decorator-left-out", line_start, line_end, b"")


OPERATORS = (removal, returned, jump, exception, decorator)
