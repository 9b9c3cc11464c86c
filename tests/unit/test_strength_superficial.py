"""Superficial fixes of a start, and the examples that they serve."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from woodshed.verify.strength import Kind, variants
from woodshed.verify.strength.examples import Example, examples_of

START = b'''"""Of numbers."""

from __future__ import annotations


class Sums:
    def total(self, a: int, b: int = 0) -> int:
        """The sum.

        >>> Sums().total(1, 2)
        3
        """
        text = f"""
{a} and {b}
"""
        return len(text) - int(text[90])


def other(a):
    return a
'''
SOLVED = START.replace(b"return len(text) - int(text[90])", b"return a + b")


def superficial(
    start: dict[str, bytes], solved: dict[str, bytes | None], *examples: str
) -> dict[str, dict[str, bytes | None]]:
    found = variants(start, solved, seed=0, at_most=99, examples=examples)
    return {variant.operator: dict(variant.files) for variant in found if variant.kind is Kind.SUPERFICIAL}


def run(content: bytes | None, call: str) -> Any:
    space: dict[str, Any] = {}
    exec(compile(content or b"", "m.py", "exec"), space)  # what this test itself made
    return eval(call, space)


def test_only_functions_that_the_reference_changes_are_faked() -> None:
    """The examples are answered, the failure is hidden, and a function that is right already stays as it is."""
    found = superficial({"m.py": START}, {"m.py": SOLVED})
    assert set(found) == {"examples-special-cased", "exception-swallowed", "constant-returned"}
    assert run(found["examples-special-cased"]["m.py"], "Sums().total(1, 2)") == 3
    with pytest.raises(IndexError):
        run(found["examples-special-cased"]["m.py"], "Sums().total(2, 2)")
    assert run(found["exception-swallowed"]["m.py"], "Sums().total(1, 2)") is None
    for files in found.values():
        assert run(files["m.py"], "other(5)") == 5


def test_swallowing_keeps_long_strings() -> None:
    """The body is indented, and what stands inside its strings is not."""
    swallowed = superficial({"m.py": START}, {"m.py": SOLVED})["exception-swallowed"]["m.py"] or b""
    assert b'\n{a} and {b}\n"""' in swallowed
    assert ast.get_docstring(ast.parse(swallowed)) == "Of numbers."


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("indent", [b"    ", b"\t"])
def test_faked_functions_compile(end: bytes, indent: bytes) -> None:
    """Tabs, CRLF, a missing last end of line, decorated functions, ones on a single line: all compile or are none."""
    start = (b"def f(a):\n    # remark\n    @a\n    def g():\n        return 1\n    return g\n\n\ndef h(a): return a\n"
             b"\n\nasync def k():\n    return 1").replace(b"    ", indent).replace(b"\n", end)
    solved = start.replace(b"return 1", b"return 2").replace(b"return a", b"return b")
    found = variants({"m.py": start}, {"m.py": solved}, seed=0, at_most=99)
    assert {variant.operator for variant in found if variant.kind is Kind.SUPERFICIAL} == {
        "exception-swallowed", "constant-returned"}
    for variant in found:
        compile(variant.files["m.py"] or b"", "m.py", "exec")


def test_visible_tests_are_deleted_and_skipped() -> None:
    """All tests of the start go, or are marked to be skipped, in Python and in JavaScript; the start is not mended."""
    start = {"m.py": START, "tests/test_m.py": b'"""Tests."""\nfrom __future__ import annotations\ndef test_a(): f()\n',
             "tests/__init__.py": b"", "web/a.test.js": b"test('a', () => {});\n  it('b', () => {});\n"}
    found = superficial(start, {"m.py": SOLVED})
    assert found["tests-deleted"] == {"tests/test_m.py": None, "tests/__init__.py": None, "web/a.test.js": None}
    skipped = found["tests-skipped"]
    assert skipped["web/a.test.js"] == b"test.skip('a', () => {});\n  it.skip('b', () => {});\n"
    assert set(skipped) == {"tests/test_m.py", "web/a.test.js"}
    tree = ast.parse(skipped["tests/test_m.py"] or b"")
    assert [type(node).__name__ for node in tree.body] == ["Expr", "ImportFrom", "Import", "Assign", "FunctionDef"]


@pytest.mark.parametrize(("text", "expected"), [
    (">>> f(1, 'a')\n[1, 2]\n", [(("1", "'a'"), "[1, 2]")]),
    ("    >>> f( [1,\n    ...  2])\n    True", []),
    (">>> f(1)\n>>> f(2)\n3", [(("2",), "3")]),
    ("assert f(1) == 2", [(("1",), "2")]),
    ("assert f((1, 2)) == (3, 4), 'message'", [(("(1, 2)",), "(3, 4)")]),
    ("    assert f(-1) == {'a': 1}, 'message'\n", [(("-1",), "{'a': 1}")]),
    ("`f(2)` returns `4`.", [(("2",), "4")]),
    ("f(2) -> 4, f(3) ➞ 9", [(("2",), "4"), (("3",), "9")]),
    ("f('abc') should return 'cba'", [(("'abc'",), "'cba'")]),
    ("f(0) is None", [(("0",), "None")]),
    ("f(x) == 3 and f(1) == y", []),
    ("f(k=1) == 3", []),
    ("def f(1): 3\nof(1) == 2 g.f(3) == 4", [(("1",), "3"), (("3",), "4")]),
    ("f(" * 3000, []),
    ("f(1)", []),
    ("self.assertEqual(f(1), 2)\nself.assertEqual(m.f([1]), [2], 'why')", [(("1",), "2"), (("[1]",), "[2]")]),
    ("g(f(1), 2)", []),
])
def test_examples_are_read(text: str, expected: list[tuple[tuple[str, ...], str]]) -> None:
    """Doctests, assertions and the ways in which instructions say what a call gives; literals alone."""
    assert examples_of([text], ["f"]) == [Example("f", arguments, result) for arguments, result in expected]


def test_examples_of_no_function() -> None:
    """No names, no examples; names that are no identifiers are no pattern."""
    assert examples_of(["f(1) == 2"], []) == []
    assert examples_of(["f(1) == 2"], ["(", "g"]) == []
