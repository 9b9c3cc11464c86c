"""Variants of a reference: what is made, what is left out, and what an author reads."""

from __future__ import annotations

from woodshed.verify.strength import Kind, variants

START = {"calc.py": b"def total(a, b):\n    return a - b\n\n\ndef other(a):\n    return a\n"}
SOLVED = {"calc.py": b"def total(a, b):\n    return a + b\n\n\ndef other(a):\n    return a[1:]\n"}


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
