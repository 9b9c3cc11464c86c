"""Mutation operators over Python expressions. Each takes a node and gives the edits of its text. Pure.

Three-letter names are those of Offutt and others (Mothra, 1996) as MutPy and cosmic-ray apply them to Python; ``docs/
strength.md`` lists the sources. An operator gives few mutants, those that are hard to tell from the original.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from woodshed.verify.strength.edit import Edit
from woodshed.verify.strength.python import Source

_BOUNDARY: dict[type[ast.cmpop], tuple[bytes, bytes, bytes]] = {  # what is written, its boundary moved, its opposite
    ast.Lt: (b"<", b"<=", b">="), ast.LtE: (b"<=", b"<", b">"), ast.Gt: (b">", b">=", b"<="),
    ast.GtE: (b">=", b">", b"<"),
}
_OPPOSITE: dict[type[ast.cmpop], tuple[bytes, bytes]] = {
    ast.Eq: (rb"==", b"!="), ast.NotEq: (rb"!=", b"=="), ast.Is: (rb"is", b"is not"),
    ast.IsNot: (rb"is\s+not", b"is"), ast.In: (rb"in", b"not in"), ast.NotIn: (rb"not\s+in", b"in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[bytes, bytes]] = {
    ast.Add: (b"+", b"-"), ast.Sub: (b"-", b"+"), ast.Mult: (b"*", b"/"), ast.Div: (b"/", b"*"),
    ast.FloorDiv: (b"//", b"*"), ast.Mod: (b"%", b"//"), ast.Pow: (b"**", b"*"), ast.BitAnd: (b"&", b"|"),
    ast.BitOr: (b"|", b"&"), ast.BitXor: (b"^", b"|"), ast.LShift: (b"<<", b">>"), ast.RShift: (b">>", b"<<"),
}
_HUGE = 10**12
_SMALL = 255  # beyond it one more or less is a size or a year, and is halved instead


def comparison(source: Source, node: ast.AST) -> Iterator[Edit]:
    """ROR: the boundary moved, the relation turned round (Kaminski and others, 2013: these imply the others)."""
    if not isinstance(node, ast.Compare):
        return
    operands = [node.left, *node.comparators]
    for left, right, relation in zip(operands, node.comparators, node.ops, strict=False):
        kind = type(relation)
        if kind in _BOUNDARY:
            written, boundary, opposite = _BOUNDARY[kind]
            if not _same_at_boundary(node):
                yield from _between(source, left, right, re.escape(written), boundary, "comparison-boundary")
            if not _tests_loop(source, node):
                yield from _between(source, left, right, re.escape(written), opposite, "comparison-negated")
        elif kind in _OPPOSITE and not _tests_loop(source, node):
            pattern, opposite = _OPPOSITE[kind]
            yield from _between(source, left, right, pattern, opposite, "comparison-negated")


def _same_at_boundary(node: ast.Compare) -> bool:
    """``len(x) >= 0`` and the like: always so, whichever way; never worth a mutant."""
    return len(node.ops) == 1 and ast.dump(node.left) == ast.dump(node.comparators[0])


def _tests_loop(source: Source, node: ast.AST) -> bool:
    """A while loop's condition turned round ends at once or never."""
    parent = source.parents.get(node)
    return isinstance(parent, ast.While) and parent.test is node


def _between(
    source: Source, left: ast.AST, right: ast.AST, pattern: bytes, new: bytes, operator: str
) -> Iterator[Edit]:
    start, end = source.span(left)[1], source.span(right)[0]
    if b"#" in source.text[start:end]:
        return
    match = re.compile(pattern).search(source.text, start, end)
    if match:
        yield Edit(operator, match.start(), match.end(), new)


def arithmetic(source: Source, node: ast.AST) -> Iterator[Edit]:
    """AOR, LOR and their assignments (ASR): the operator's counterpart. Text that is joined loses a part instead."""
    if isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
        written, new = _ARITHMETIC[type(node.op)]
        if not _steers_loop(source, node, node.target):
            pattern = re.escape(written) + b"="
            yield from _between(source, node.target, node.value, pattern, new + b"=", "arithmetic")
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        if any(_textual(side) for side in (node.left, node.right)):
            if isinstance(node.op, ast.Add):
                start, end = source.span(node)
                for side in (node.left, node.right):
                    yield Edit("operand-removed", start, end, b"(" + source.of(side) + b")")
            return
        written, new = _ARITHMETIC[type(node.op)]
        yield from _between(source, node.left, node.right, rb"(?<!\*)" + re.escape(written), new, "arithmetic")


def _textual(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _textual(node.left) or _textual(node.right)
    literal = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return literal or isinstance(node, ast.JoinedStr | ast.List | ast.ListComp | ast.Tuple)


def _steers_loop(source: Source, node: ast.AST, target: ast.AST) -> bool:
    """``target`` is in the condition of a while loop around ``node``: changed, the loop might not end."""
    names = {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    above = source.parents.get(node)
    while above is not None and not isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef):
        if isinstance(above, ast.While):
            used = {part.id for part in ast.walk(above.test) if isinstance(part, ast.Name)}
            if names & used or not used:
                return True
        above = source.parents.get(above)
    return False


def boolean(source: Source, node: ast.AST) -> Iterator[Edit]:
    """LCR: ``and`` becomes ``or`` and the other way round; COD: each operand left out."""
    if not isinstance(node, ast.BoolOp):
        return
    start, end = source.span(node)
    now, other = (rb"and", b"or") if isinstance(node.op, ast.And) else (rb"or", b"and")
    for left, right in zip(node.values, node.values[1:], strict=False):
        yield from _between(source, left, right, rb"\b" + now + rb"\b", other, "boolean-operator")
    sign = b" " + now + b" "
    for left_out in node.values:
        rest = [b"(" + source.of(value) + b")" for value in node.values if value is not left_out]
        yield Edit("condition-left-out", start, end, rest[0] if len(rest) == 1 else b"(" + sign.join(rest) + b")")


def unary(source: Source, node: ast.AST) -> Iterator[Edit]:
    """COD, AOD: ``not``, ``-`` and ``~`` removed."""
    if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            inside = source.parents.get(node)
            if isinstance(inside, ast.Slice):
                return  # a[-1:] and a[1:] are told apart by the constant's own mutants
        if _tests_loop(source, node):
            return
        start, end = source.span(node)
        name = "not-removed" if isinstance(node.op, ast.Not) else "sign-removed"
        yield Edit(name, start, end, b"(" + source.of(node.operand) + b")")


def constant(source: Source, node: ast.AST) -> Iterator[Edit]:
    """CRP: numbers one more and one less, truth flipped, text and collections emptied."""
    if isinstance(node, ast.JoinedStr):
        yield Edit("text-emptied", *source.span(node), b'""')
    elif isinstance(node, ast.List | ast.Set | ast.Dict) and _nonempty(node):
        if not isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
            empty = {ast.List: b"[]", ast.Set: b"set()", ast.Dict: b"{}"}[type(node)]
            yield Edit("collection-emptied", *source.span(node), empty)
    elif isinstance(node, ast.Constant):
        for new in _other_values(source, node):
            yield Edit("constant", *source.span(node), new)


def _nonempty(node: ast.List | ast.Set | ast.Dict) -> bool:
    return bool(node.keys if isinstance(node, ast.Dict) else node.elts)


def _other_values(source: Source, node: ast.Constant) -> Iterator[bytes]:
    value = node.value
    if isinstance(value, bool):
        yield repr(not value).encode()
    elif isinstance(value, int):
        yield from _other_numbers(source, node, value)
    elif isinstance(value, float):
        yield b"(" + source.of(node) + b" + 1)"
    elif isinstance(value, str):
        yield b'""' if value else b'"XX"'
    elif isinstance(value, bytes):
        yield b'b""' if value else b'b"XX"'


def _other_numbers(source: Source, node: ast.Constant, value: int) -> Iterator[bytes]:
    if value > _SMALL:
        yield str(value // 2).encode() if value < _HUGE else b"1"
        return
    around = source.parents.get(node)
    as_boundary = _moves_boundary(around, node)
    if as_boundary != 1:
        yield str(value + 1).encode()
    if as_boundary != -1 and (value > 0 or (not isinstance(around, ast.UnaryOp) and not _remainder(around))):
        yield b"(-1)" if value == 0 else str(value - 1).encode()


def _moves_boundary(around: ast.AST | None, node: ast.Constant) -> int:
    """By how much ``node`` would move so that, for whole numbers, it says what the boundary's own mutant says."""
    if not isinstance(around, ast.Compare) or len(around.ops) != 1:
        return 0
    on_right = around.comparators[0] is node
    match around.ops[0]:
        case ast.Lt() | ast.GtE():
            return 1 if on_right else -1
        case ast.Gt() | ast.LtE():
            return -1 if on_right else 1
    return 0


def _remainder(around: ast.AST | None) -> bool:
    """``x % 2 == 0``: no remainder is -1, and then the comparison itself is turned round."""
    left = around.left if isinstance(around, ast.Compare) else None
    return isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod)


def condition(source: Source, node: ast.AST) -> Iterator[Edit]:
    """COI: the condition of a branch, a choice or a filter negated; a filter that lets all pass."""
    tests: list[ast.expr] = []
    if isinstance(node, ast.If | ast.IfExp):
        tests = [node.test]
    elif isinstance(node, ast.comprehension):
        tests = node.ifs
        for test in tests:
            yield Edit("filter-removed", *source.span(test), b"True")
    for test in tests:
        single = isinstance(test, ast.Compare) and len(test.ops) == 1
        if not single and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            yield Edit("condition-negated", *source.span(test), b"(not (" + source.of(test) + b"))")


def loop(source: Source, node: ast.AST) -> Iterator[Edit]:
    """ZIL: a loop that is never entered."""
    if isinstance(node, ast.For | ast.AsyncFor) and not _empty(node.iter):
        if isinstance(node, ast.For):
            yield Edit("loop-skipped", *source.span(node.iter), b"()")
    elif isinstance(node, ast.While) and not isinstance(node.test, ast.Constant):
        yield Edit("loop-skipped", *source.span(node.test), b"False")


def _empty(node: ast.expr) -> bool:
    return isinstance(node, ast.List | ast.Tuple) and not node.elts


def subscript(source: Source, node: ast.AST) -> Iterator[Edit]:
    """SIR and off by one: each bound of a slice removed, and moved by one where it is no constant; an index moved."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return
    if isinstance(node.slice, ast.Slice):
        for bound in (node.slice.lower, node.slice.upper, node.slice.step):
            if bound is None:
                continue
            yield Edit("bound-removed", *source.span(bound), b"")
            if not _number(bound) and bound is not node.slice.step:
                yield Edit("bound-moved", *source.span(bound), b"(" + source.of(bound) + b") + 1")
                yield Edit("bound-moved", *source.span(bound), b"(" + source.of(bound) + b") - 1")
    elif isinstance(node.slice, ast.BinOp) and isinstance(node.slice.op, ast.Add | ast.Sub):
        yield Edit("index-moved", *source.span(node.slice), source.of(node.slice) + b" - 1")


def _number(node: ast.expr) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant)


OPERATORS = (comparison, arithmetic, boolean, unary, constant, condition, loop, subscript)
