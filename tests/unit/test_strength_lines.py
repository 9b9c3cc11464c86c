"""Mutants of lines in languages without a parser here."""

from __future__ import annotations

import pytest

from woodshed.verify.strength import Kind, variants


def mutated(path: str, line: str) -> list[tuple[str, str]]:
    """Operator and result of every mutant of ``line``, which stands in the reference after a blank line."""
    found = variants({path: b"none"}, {path: f"\n{line}\n".encode()}, seed=0, at_most=999)
    return sorted((variant.operator, (variant.files[path] or b"").decode()[1:].removesuffix("\n"))
                  for variant in found if variant.kind is Kind.MUTANT)


@pytest.mark.parametrize(("path", "line", "expected"), [
    ("a.js", "if (a < b && !c) return 0;", [
        ("boolean", "if (a < b || !c) return 0;"), ("comparison", "if (a <= b && !c) return 0;"),
        ("comparison", "if (a >= b && !c) return 0;"), ("condition-negated", "if (!(a < b && !c)) return 0;"),
        ("line-removed", ""), ("not-removed", "if (a < b && c) return 0;"), ("number", "if (a < b && !c) return 1;")]),
    ("a.ts", "const x = a === b;", [("comparison", "const x = a !== b;")]),
    ("a.ts", "type A = \"a\" | \"b\";", []),
    ("a.ts", "  readonly most?: number;", []),
    ("a.ts", "import { a } from \"b\";", []),
    ("a.js", "x = a + b; // 1 + 1", [("arithmetic", "x = a - b; // 1 + 1"), ("line-removed", "")]),
    ("a.js", "/* a + b */", []),
    ("a.go", "\ti++", [("arithmetic", "\ti--")]),
    ("a.go", "\tbreak", [("line-removed", ""), ("word", "\tcontinue")]),
    ("a.c", "x += true;", [("arithmetic", "x -= true;"), ("line-removed", ""), ("word", "x += false;")]),
    ("a.c", "char *s = \"a + b\";", [("line-removed", ""), ("string", "char *s = \"\";")]),
    ("a.c", "#include \"a.h\"", []),
    ("a.c", "}", []),
    ("a.rs", "let x: &'a str = y;", []),
    ("a.java", "List<String> x = f(1);", [
        ("line-removed", ""), ("number", "List<String> x = f(0);"), ("number", "List<String> x = f(2);")]),
    ("a.sh", "[ \"$a\" -lt 1 ] && rm -f b", [
        ("boolean", "[ \"$a\" -lt 1 ] || rm -f b"), ("comparison", "[ \"$a\" -le 1 ] && rm -f b"), ("line-removed", ""),
        ("number", "[ \"$a\" -lt 0 ] && rm -f b"), ("number", "[ \"$a\" -lt 2 ] && rm -f b")]),
    ("a.sh", "echo a >> b", [("line-removed", ""), ("redirection", "echo a > b")]),
    ("a.sh", "set -euo pipefail", []),
    ("a.sh", "if true; then", []),
    ("a.rb", "x = a and b", [("line-removed", ""), ("word", "x = a or b")]),
    ("a.sql", "SELECT DISTINCT a FROM b WHERE c <> 2 ORDER BY d DESC;", [
        ("clause-removed", "SELECT a FROM b WHERE c <> 2 ORDER BY d DESC;"),
        ("comparison", "SELECT DISTINCT a FROM b WHERE c = 2 ORDER BY d DESC;"), ("line-removed", ""),
        ("number", "SELECT DISTINCT a FROM b WHERE c <> 1 ORDER BY d DESC;"),
        ("number", "SELECT DISTINCT a FROM b WHERE c <> 3 ORDER BY d DESC;"),
        ("word", "SELECT DISTINCT a FROM b WHERE c <> 2 ORDER BY d ASC;")]),
    ("a.yaml", "debug: true  # 1", [("line-removed", ""), ("word", "debug: false  # 1")]),
    ("a.json", "\"a\": 1,", [("line-removed", ""), ("number", "\"a\": 0,"), ("number", "\"a\": 2,"),
                             ("string", "\"\": 1,")]),
    ("a.txt", "two words", [("line-removed", ""), ("word-removed", "two")]),
    ("run", "two words", [("line-removed", ""), ("word-removed", "two")]),
])
def test_a_line_is_mutated(path: str, line: str, expected: list[tuple[str, str]]) -> None:
    """The mutants of a line in its language, and no others; comments, imports and types have none."""
    assert mutated(path, line) == sorted(expected)


@pytest.mark.parametrize(("first", "line", "operator"), [
    ("#!/bin/sh", "[ a = b ]", "comparison"),
    ("#!/usr/bin/env node", "x = a === b;", "comparison"),
    ("#!/usr/bin/perl", "x = a == b", "comparison"),
])
def test_a_script_is_known_by_its_first_line(first: str, line: str, operator: str) -> None:
    """A file without a suffix is what its first line says."""
    found = variants({"tool": f"{first}\n".encode()}, {"tool": f"{first}\n{line}\n".encode()}, seed=0, at_most=99)
    assert operator in {variant.operator for variant in found}


def test_ends_of_lines_are_kept() -> None:
    """A removed line goes with its end; the last one may have none."""
    found = variants({"a.txt": b"1 a\r\n"}, {"a.txt": b"1 a\r\n2 b\r\n3 c"}, seed=0, at_most=99)
    removed = {variant.files["a.txt"] for variant in found if variant.operator == "line-removed"}
    assert removed == {b"1 a\r\n3 c", b"1 a\r\n2 b\r\n"}


def test_long_lines_and_binary_files_have_no_mutants() -> None:
    """Data in one long line, and bytes that are no text, are left alone."""
    for content in (b"x = 1;" * 1000, b"\0 1 2\n"):
        assert variants({"a.js": b"y"}, {"a.js": content}, seed=0, at_most=9) == []
