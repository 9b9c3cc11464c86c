"""Each mutation operator over Python: what it makes of a line, and what it leaves alone."""

from __future__ import annotations

import pytest

from woodshed.verify.strength import Kind, variants


def mutated(line: str, operator: str | None = None, *, before: str = "", after: str = "") -> list[str]:
    """What becomes of ``line``, the one that the reference adds to a function; only by ``operator`` where given."""
    head = f"def f(a, b, c, *d):\n{before}"
    tail = f"{after}    return a, b, c\n"
    start, solved = f"{head}    g()\n{tail}", f"{head}    {line}\n{tail}"
    found = variants({"m.py": start.encode()}, {"m.py": solved.encode()}, seed=0, at_most=1000)
    made = [(variant.files["m.py"] or b"").decode() for variant in found
            if variant.kind is Kind.MUTANT and operator in (None, variant.operator)]
    assert all(text.startswith(head) and text.endswith(tail) for text in made)
    return [text[len(head) : len(text) - len(tail)].strip("\n").removeprefix("    ") for text in made]


@pytest.mark.parametrize(("line", "operator", "expected"), [
    ("x = a < b", "comparison-boundary", ["x = a <= b"]),
    ("x = a >= b", "comparison-boundary", ["x = a > b"]),
    ("x = a < b", "comparison-negated", ["x = a >= b"]),
    ("x = a == b", "comparison-negated", ["x = a != b"]),
    ("x = a is not b", "comparison-negated", ["x = a is b"]),
    ("x = a not  in b", "comparison-negated", ["x = a in b"]),
    ("x = (a) < (b) <= c", "comparison-boundary", ["x = (a) <= (b) <= c", "x = (a) < (b) < c"]),
    ("x = a + b", "arithmetic", ["x = a - b"]),
    ("x = a ** b", "arithmetic", ["x = a * b"]),
    ("x = a // b", "arithmetic", ["x = a * b"]),
    ("x = a % b", "arithmetic", ["x = a // b"]),
    ("x = a << b", "arithmetic", ["x = a >> b"]),
    ("a += b", "arithmetic", ["a -= b"]),
    ("a **= b", "arithmetic", ["a *= b"]),
    ("x = 'k' + a", "operand-removed", ["x = ('k')", "x = (a)"]),
    ("x = '%s' % a", "arithmetic", []),
    ("x = a and b", "boolean-operator", ["x = a or b"]),
    ("x = a or b or c", "boolean-operator", ["x = a or b and c", "x = a and b or c"]),
    ("x = a or b", "condition-left-out", ["x = (b)", "x = (a)"]),
    ("x = a and b and c", "condition-left-out", [
        "x = ((a) and (b))", "x = ((a) and (c))", "x = ((b) and (c))"]),
    ("x = not a", "not-removed", ["x = (a)"]),
    ("x = -a", "sign-removed", ["x = (a)"]),
    ("x = ~a", "sign-removed", ["x = (a)"]),
    ("x = 1", "constant", ["x = 0", "x = 2"]),
    ("x = 0", "constant", ["x = (-1)", "x = 1"]),
    ("x = 3600", "constant", ["x = 1800"]),
    ("x = 0.5", "constant", ["x = (0.5 + 1)"]),
    ("x = True", "constant", ["x = False"]),
    ("x = 'text'", "constant", ['x = ""']),
    ("x = ''", "constant", ['x = "XX"']),
    ("x = b'text'", "constant", ['x = b""']),
    ("x = a < 3", "constant", ["x = a < 2"]),
    ("x = a % 2 == 0", "constant", ["x = a % 1 == 0", "x = a % 2 == 1", "x = a % 3 == 0"]),
    ("x = f'{a} of {b + 1}'", None, ['x = ""', "x = None"]),
    ("x = [a, b]", "collection-emptied", ["x = []"]),
    ("x = {a}", "collection-emptied", ["x = set()"]),
    ("x = {a: b}", "collection-emptied", ["x = {}"]),
    ("[x, y] = a", "collection-emptied", []),
    ("x = b if a else c", "condition-negated", ["x = b if (not (a)) else c"]),
    ("x = b if a < c else c", "condition-negated", []),
    ("x = [i for i in a if i]", "filter-removed", ["x = [i for i in a if True]"]),
    ("x = [i for i in a if i]", "condition-negated", ["x = [i for i in a if (not (i))]"]),
    ("for x in a: b(x)", "loop-skipped", ["for x in (): b(x)"]),
    ("while a: b()", "loop-skipped", ["while False: b()"]),
    ("while a < b: b()", "comparison-negated", []),
    ("x = a[b:c]", "bound-removed", ["x = a[:c]", "x = a[b:]"]),
    ("x = a[:b]", "bound-moved", ["x = a[:(b) + 1]", "x = a[:(b) - 1]"]),
    ("x = a[0:b]", "bound-removed", ["x = a[0:]"]),
    ("x = a[:len(a)]", "bound-removed", []),
    ("x = a[:len(a)]", "bound-moved", ["x = a[:(len(a)) - 1]"]),
    ("x = a[b + 1]", "index-moved", ["x = a[b + 1 - 1]"]),
    ("x = min(a, b)", "function-swapped", ["x = max(a, b)"]),
    ("x = a.strip()", "function-swapped", ["x = a.lstrip()"]),
    ("a.append(b)", "function-swapped", ["a.extend(b)"]),
    ("a.append('x')", "function-swapped", []),
    ("x = abs(a)", "call-removed", ["x = (a)"]),
    ("x = sorted(a)", "call-removed", ["x = list(a)"]),
    ("x = set(sorted(a))", "call-removed", ["x = list(sorted(a))"]),
    ("x = b in set(a)", "call-removed", []),
    ("x = abs(a % 10)", "call-removed", []),
    ("x = int(round(a))", "call-removed", ["x = int((a))"]),
    ("x = c(a, b)", "arguments-swapped", ["x = c(b, a)"]),
    ("x = c(a, a)", "arguments-swapped", []),
    ("x = max(a, b)", "arguments-swapped", []),
    ("x = c(*a, b)", "arguments-swapped", []),
    ("x = c(a, k=b)", "argument-left-out", ["x = c(a)"]),
    ("x = c(k=a, l=(b))", "argument-left-out", ["x = c(l=(b))", "x = c(k=a)"]),
    ("x = c((a), k=b)", "argument-left-out", ["x = c((a))"]),
    ("x = sorted(a, reverse=False)", "argument-left-out", []),
    ("x = open(a, encoding='UTF-8')", "argument-left-out", []),
    ("x = range(a)", "range-moved", ["x = range(a + 1)", "x = range(a - 1)"]),
    ("a.close()", "statement-removed", ["pass"]),
    ("del a[0]", "statement-removed", ["pass"]),
    ("raise ValueError(a)", "statement-removed", ["pass"]),
    ("a.b = c", "statement-removed", ["pass"]),
    ("a = b", "statement-removed", ["pass"]),
    ("x = b", "statement-removed", []),
    ("x = b", "value-none", ["x = None"]),
    ("x, y = b, c", "statement-removed", ["pass"]),
    ("return a", "return-none", ["return None"]),
    ("return True", "return-none", []),
    ("return a", "statement-removed", ["pass"]),
    ("raise ValueError(a)", "exception-type", ["raise RuntimeError(a)"]),
    ("raise RuntimeError(a)", "exception-type", ["raise LookupError(a)"]),
    ("raise NotImplementedError", "exception-type", ["raise LookupError"]),
    ("raise a", "exception-type", []),
    ("@b\n    def x(): pass", "decorator-left-out", ["def x(): pass"]),
    ("@functools.cache\n    def x(): pass", "decorator-left-out", []),
])
def test_an_operator_mutates(line: str, operator: str | None, expected: list[str]) -> None:
    """The operator's mutants of the line, and no others."""
    assert sorted(mutated(line, operator)) == sorted(expected)


@pytest.mark.parametrize(("line", "expected"), [
    ("break", ["continue"]),
    ("continue", ["break", "pass"]),
])
def test_jumps_are_swapped(line: str, expected: list[str]) -> None:
    """In a loop that counts, ``break`` and ``continue`` change places."""
    made = mutated(f"    {line}", before="    for i in a:\n      if i:\n", after="      b(i)\n")
    assert sorted(text.strip() for text in made) == expected


@pytest.mark.parametrize(("clause", "expected"), [
    ("except ValueError:", ["except ():"]),
    ("except (ValueError, KeyError):", ["except (KeyError,):", "except (ValueError,):"]),
    ("except (ValueError, Exception):", ["except (ValueError,):"]),
])
def test_handlers_catch_less(clause: str, expected: list[str]) -> None:
    """A handler catches nothing, or one type less unless another includes it."""
    start = "try:\n    f()\nexcept OSError:\n    pass\n"
    found = variants({"m.py": start.encode()}, {"m.py": start.replace("except OSError:", clause).encode()}, seed=0,
                     at_most=99)
    made = [(variant.files["m.py"] or b"").decode().splitlines()[2] for variant in found]
    assert sorted(made) == expected


@pytest.mark.parametrize("line", [
    "pass", "'''A docstring.'''", "assert a", "logger.info('%s', a)", "self.log.debug(a)", "x: int", "# remark",
    "import os", "global x", "...", "warnings.warn('old', stacklevel=2)", "def g(k: 'int' = None) -> 'str': ...",
    "if TYPE_CHECKING: from x import y", "__version__ = '1'",
])
def test_what_no_test_sees_is_left_alone(line: str) -> None:
    """Remarks, messages, assertions, annotations and declarations have no mutants."""
    assert mutated(line) == []


@pytest.mark.parametrize("line", [
    "x = a if a > b else b", "if a > b: b = a", "if a < b: a, b = b, a",
])
def test_equal_values_make_no_boundary(line: str) -> None:
    """Where equal values give the same either way, the boundary is not moved."""
    assert mutated(line, "comparison-boundary") == []
    assert mutated(line, "comparison-negated")


@pytest.mark.parametrize(("before", "line", "operator"), [
    ("    while a:\n", "    a -= 1", "arithmetic"),
    ("    while a:\n", "    a -= 1", "statement-removed"),
    ("    while a < b:\n", "    a = c(a)", "statement-removed"),
    ("    while True:\n      if a:\n", "      break", "jump-swapped"),
    ("    for i in a:\n", "    if i: x = True; break", "jump-swapped"),
])
def test_loops_still_end(before: str, line: str, operator: str) -> None:
    """What takes a loop to its end is not taken away; what only ends it sooner is not either."""
    assert mutated(line, operator, before=before) == []


def test_only_changed_lines_are_mutated() -> None:
    """Unchanged lines, and statements that reach into them, have no mutants."""
    start = b"def f(a):\n    x = [\n        1,\n        2,\n    ]\n    return a + 1\n"
    solved = start.replace(b"        2,\n", b"        2,\n        30,\n")
    found = variants({"m.py": start}, {"m.py": solved}, seed=0, at_most=99)
    made = {line for variant in found if variant.kind is Kind.MUTANT
            for line in variant.patch.splitlines() if line.startswith("+ ")}
    assert made == {"+        31,", "+        29,"}


def test_programs_that_compile_to_the_same_code_are_dropped() -> None:
    """Mutants that the compiler makes the reference, or each other, count once."""
    assert len(mutated("if False: x = 1 + 1")) == 1
    assert len(mutated("x = 1 + 1", "constant")) == 2


def test_other_encodings_and_byte_order_marks() -> None:
    """A byte order mark is kept; a source that is not UTF-8 has no mutants, and says nothing else."""
    start, solved = b"\xef\xbb\xbfx = 1\n", b"\xef\xbb\xbfx = 'caf\xc3\xa9' + y\n"
    for variant in variants({"m.py": start}, {"m.py": solved}, seed=0, at_most=99):
        assert (variant.files["m.py"] or b"").startswith(b"\xef\xbb\xbfx = ")
    latin = b"# coding: latin-1\nx = 'caf\xe9' + y\n"
    assert variants({"m.py": b"x = 1\n"}, {"m.py": latin}, seed=0, at_most=99) == []
