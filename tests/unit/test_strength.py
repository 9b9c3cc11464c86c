"""Variants of a reference: hunks left out, how many are chosen, and what an author reads."""

from __future__ import annotations

from collections import Counter

import pytest

from woodshed.verify.strength import Files, Kind, Variant, variants

START = {"calc.py": b"def total(a, b):\n    return a - b\n\n\ndef other(a):\n    return a\n"}
SOLVED: Files = {"calc.py": b"def total(a, b):\n    return a + b\n\n\ndef other(a):\n    return a[1:]\n"}


def hunks(start: dict[str, bytes], solved: Files) -> list[Variant]:
    return [variant for variant in variants(start, solved, seed=0, at_most=999) if variant.kind is Kind.HUNK]


def test_a_small_fix_has_variants_of_every_kind() -> None:
    """Hunks, mutants and superficial fixes of a two-line fix, each over the start, with a patch."""
    found = variants(START, SOLVED, seed=1, at_most=100, examples=["`total(1, 2)` returns 3."])
    assert {variant.kind for variant in found} == set(Kind)
    hunk = found[0]
    assert (hunk.name, hunk.line) == ("hunk:calc.py:2:hunk-left-out", 2)
    assert hunk.files == {"calc.py": START["calc.py"].replace(b"return a\n", b"return a[1:]\n")}
    assert "-    return a + b\n+    return a - b\n" in hunk.patch
    special = next(variant for variant in found if variant.operator == "examples-special-cased")
    assert b"    if (a, b) == (1, 2): return 3\n    return a - b\n" in (special.files["calc.py"] or b"")


def test_the_other_changes_of_the_reference_stay() -> None:
    """A hunk or mutant of one file keeps what the reference does to the others; a superficial fix keeps none of it."""
    start, solved = {**START, "a.txt": b"1\n"}, {**SOLVED, "a.txt": b"2\n", "b.js": b"f();\n"}
    for variant in variants(start, solved, seed=0, at_most=100):
        others = {path: variant.files.get(path) for path in ("a.txt", "b.js") if path != variant.path}
        if variant.kind is Kind.SUPERFICIAL:
            assert set(variant.files) == {variant.path}
        else:
            assert others == {path: solved[path] for path in others}


def test_files_are_hunks() -> None:
    """A file added, deleted or renamed is left out whole; a renamed one may also stand twice."""
    start = {"old.txt": b"1\n2\n3\n", "gone.js": b"f();\n", "kept.js": b"g();\n"}
    solved = {"old.txt": None, "dir/new.txt": b"1\n2\n4\n", "gone.js": None, "more.js": b"h();\n"}
    found = {variant.operator: variant.files for variant in hunks(start, solved)}
    assert found == {
        "rename-left-out": {"old.txt": b"1\n2\n4\n", "gone.js": None, "more.js": b"h();\n"},
        "old-name-kept": {"dir/new.txt": b"1\n2\n4\n", "gone.js": None, "more.js": b"h();\n"},
        "deletion-left-out": {"old.txt": None, "dir/new.txt": b"1\n2\n4\n", "more.js": b"h();\n"},
        "file-left-out": {"old.txt": None, "dir/new.txt": b"1\n2\n4\n", "gone.js": None},
    }


@pytest.mark.parametrize(("path", "start", "solved"), [
    ("a.py", b"x = 1\n", b"x  =  1  # one\n"),
    ("a.py", b"def f():\n    return 1\n", b'def f():\n    """One."""\n\n    return 1\n'),
    ("a.py", b"from __future__ import annotations\n\nx = 1\n\n\ndef f(a: A): ...\n",
     b"from __future__ import annotations\nfrom b import A\nx = 1\n\n\ndef f(a: A): ...\n"),
    ("a.js", b"f(1);\n", b"// a remark\nf(1);  /* another\nof two lines */\n"),
    ("a.sh", b"echo 'a # b'\n", b"# a remark\necho 'a # b'   \n"),
    ("a.sql", b"SELECT 1;\n", b"-- a remark\nSELECT\n  1;\n"),
    ("a.yaml", b"a: 1\n", b"a: 1  # one\n\n"),
])
def test_remarks_and_layout_are_no_hunk(path: str, start: bytes, solved: bytes) -> None:
    """What no test could notice is left in: comments, docstrings, blanks, imports for annotations alone."""
    others = {"y.txt": b"0\n", "z.txt": b"0\n"}
    assert [variant.path for variant in hunks({path: start}, {path: solved, **others})] == [*others]


@pytest.mark.parametrize(("path", "start", "solved"), [
    ("a.py", b"x = 'a  b'\n", b"x = 'a b'\n"),
    ("a.py", b"if x:\n    y()\nz()\n", b"if x:\n    y()\n    z()\n"),
    ("a.js", b'f("// a");\n', b'f("");\n'),
    ("a.sh", b"echo 'a # b'\n", b"echo 'a'\n"),
    ("a.yaml", b"a:\n  b: 1\n", b"a:\nb: 1\n"),
    ("a.txt", b"a b\n", b"a  b\n"),
])
def test_what_only_looks_like_layout_is_a_hunk(path: str, start: bytes, solved: bytes) -> None:
    """Blanks within strings, indents that mean something, and signs of comments within strings count."""
    other = {"z.txt": b"0\n"}
    assert [variant.path for variant in hunks({path: start}, {path: solved, **other})] == [path, "z.txt"]


def test_hunks_of_python_compile() -> None:
    """A hunk without which the file would not compile is left out with the next: its failure would say nothing."""
    start = b"def f(a):\n    x = a\n    y = a\n    return x + y\n"
    solved = b"def f(a):\n    try:\n        x = a\n    finally:\n        pass\n    y = a\n    return x - y\n"
    for variant in hunks({"m.py": start}, {"m.py": solved}):
        compile(variant.files.get("m.py", start) or b"", "m.py", "exec")


def test_what_the_verifier_sets_back_is_not_looked_at() -> None:
    """Tests, their settings and caches have no variants, and documentation only where it is all there is."""
    start = {**START, "README.md": b"# Calc\n", "tests/test_calc.py": b"def test(): ...\n"}
    solved = {**SOLVED, "README.md": b"# Calculator\n", "tests/test_calc.py": b"def test(): f()\n",
              "conftest.py": b"x = 1\n", "__pycache__/calc.pyc": b"\0"}

    def looked_at(solved: Files) -> set[str]:
        found = variants(start, solved, seed=0, at_most=99)
        return {variant.path for variant in found if variant.kind is not Kind.SUPERFICIAL}

    assert looked_at(solved) == {"calc.py"}
    assert looked_at({"README.md": b"# Calculator\n\nAdds.\n"}) == {"README.md"}


def test_doing_nothing_is_no_variant() -> None:
    """The only hunk left out is the start itself: calibration asks that question by itself."""
    assert hunks({"a.txt": b"1\n"}, {"a.txt": b"2\n"}) == []
    assert variants(START, {}, seed=0, at_most=9) == []
    assert variants(START, {"calc.py": START["calc.py"], "none.py": None}, seed=0, at_most=9) == []


def test_binary_files_are_one_hunk() -> None:
    """A binary file is left out as a whole, and its patch gives sizes."""
    found = hunks({"a.bin": b"\0\n1\n"}, {"a.bin": b"\0\n2\n", "b.txt": b"x\n"})
    assert [variant.files for variant in found] == [{"b.txt": b"x\n"}, {"a.bin": b"\0\n2\n"}]
    assert found[0].patch == "Binary a.bin: 4 bytes -> 4 bytes\n"


def test_the_choice_is_spread() -> None:
    """Where there are too many, kinds, hunks and lines are all heard; another seed chooses otherwise."""
    body = "".join(f"def f{n}(a, b):\n    x = a + {n} * b\n    return x - {n}\n\n\nKEPT{n} = {n}\nKEPT = KEPT{n}\n"
                   for n in range(10))
    start = {"m.py": body.replace("x = a", "x = b").replace("return x -", "return x +").encode()}
    solved: Files = {"m.py": body.encode()}
    found = variants(start, solved, seed=0, at_most=30)
    kinds = Counter(variant.kind for variant in found)
    assert len(found) == 30
    assert min(kinds[kind] for kind in Kind) >= 7
    lines = Counter(variant.line for variant in found if variant.kind is Kind.MUTANT)
    assert max(lines.values()) == 1
    assert [variant.name for variant in found] == [
        variant.name for variant in variants(start, solved, seed=0, at_most=999) if variant in found]
    assert found != variants(start, solved, seed=1, at_most=30)


def test_names_that_are_no_utf8_are_told() -> None:
    """A path of any bytes gives a name that any log can hold."""
    found = variants({"\udcff.txt": b"1\n"}, {"\udcff.txt": b"2\n"}, seed=0, at_most=9)
    assert found
    for variant in found:
        assert variant.name.encode("utf-8").startswith(b"mutant:\\xff.txt:1:")
