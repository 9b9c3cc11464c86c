"""docs/strength.md says what the code does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import woodshed.verify.strength
from woodshed.verify.strength import Kind

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "strength.md").read_text()
_NAME = re.compile(r"[a-z]+(?:-[a-z]+)+")
_SINGLE = ("arithmetic", "constant", "comparison", "boolean", "word", "number", "string", "redirection")


def operators() -> set[str]:
    """Names of operators in the source: hyphenated words that are strings of their own."""
    found = set(_SINGLE)
    for path in Path(woodshed.verify.strength.__file__).parent.glob("*.py"):
        strings = (node.value for node in ast.walk(ast.parse(path.read_text()))
                   if isinstance(node, ast.Constant) and isinstance(node.value, str))
        found |= {text for text in strings if _NAME.fullmatch(text)}
    return found - {"utf-8", "utf-8-sig", "shell-comparison"}


def test_every_operator_is_documented() -> None:
    """The page names each operator and each kind, and no operator that there is not."""
    told = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", PAGE))
    assert operators() <= told | {name for name in _SINGLE if f"`{name}`" in PAGE}
    assert told <= operators()
    for kind in Kind:
        assert f"| `{kind}` |" in PAGE


def test_the_example_runs(capsys: object) -> None:
    """The code on the page runs as it stands, over a start, its end and an instruction."""
    code = PAGE.split("```python\n")[1].split("```")[0]
    space = {"start": {"calc.py": b"x = 1\n"}, "solved": {"calc.py": b"x = 2\n"}, "instruction": "Make it two."}
    exec(compile(code, "docs/strength.md", "exec"), space)  # our own page
