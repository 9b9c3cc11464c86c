"""The canary: a hidden test that must fail, under a name no one can know before the run.

It is slipped among the hidden tests in the verifier's sandbox. Code under test that forces outcomes to *passed* turns
the canary too, and so gives itself away. Its name is made of words of the task's own test names and random letters, its
failure is one of many, so that it stands out as little as possible among the tests around it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from woodshed.errors import VerifierFault
from woodshed.model import Framework, VerifierSpec

_WORDS = ("value", "result", "order", "empty", "keeps", "reads", "returns", "edge", "default", "large")
_COMMON = frozenset(("test", "tests", "check", "spec", "mjs"))
_FAILURES = (
    "raise AssertionError", "assert False", "assert not 'x'", "assert 1 + 1 == 3", "assert [] == [0]",
    "raise AssertionError('differs')", "assert {{}} != dict()", "value = {n}\n{i}assert value == {m}",
    "items = [{n}, {m}]\n{i}assert len(items) == 1", "assert {n} > {m} + {n}",
)
_NODE_FAILURES = ("throw new Error('differs')", "throw new TypeError('no')",
                  "if ({n} < {m} + {n}) throw new Error('{n}')")


@dataclass(frozen=True, slots=True)
class Canary:
    """``file`` (a name within /tests) holds ``content``; the report must name ``name`` and call it failed."""

    file: str
    name: str
    content: bytes


def framework_of(spec: VerifierSpec) -> Framework:
    """The framework that ``spec`` names, else the one its test files tell. Raises VerifierFault where none does."""
    if spec.framework is not None:
        return spec.framework
    names = [path.name for path in sorted(spec.tests.rglob("*")) if path.is_file()]
    for framework, rule in _FILES.items():
        if any(rule.fullmatch(name) for name in names):
            return framework
    raise VerifierFault(f"{spec.tests}: expected_tests are named, but no test file tells which framework runs them; "
                        "set framework to pytest, script or node")


_FILES = {
    Framework.PYTEST: re.compile(r"test_.*\.py|.*_test\.py"),
    Framework.SCRIPT: re.compile(r"check_.*\.py"),
    Framework.NODE: re.compile(r".*\.test\.(ts|mts|cts|js|mjs|cjs)"),
}


def make_canary(framework: Framework, expected: Iterable[str]) -> Canary:
    """A new canary for tests named like ``expected``; no two are alike."""
    words = sorted({word for name in expected for word in re.findall(r"[a-z]{3,12}", name.lower())} - _COMMON)
    words = words if len(words) > 2 else [*words, *_WORDS]
    # 32 random bits beside the words: the workspace was captured before, nothing in it can hold this name.
    stem = f"{secrets.choice(words)}_{_letters(3)}"
    name = f"{secrets.choice(words)}_{secrets.choice(words)}_{_letters(8)}"
    if framework is Framework.PYTEST:
        return Canary(f"test_{stem}.py", f"test_{name}", _python_test(f"test_{name}"))
    if framework is Framework.SCRIPT:
        return Canary(f"check_{name}.py", f"check_{name}", _python_failure("").encode() + b"\n")
    title = name.replace("_", " ")
    body = f"import test from 'node:test';\ntest({title!r}, () => {{\n  {_node_failure()};\n}});\n"
    return Canary(f"{name}.test.mjs", title, body.encode())


def _letters(count: int) -> str:
    return "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(count))


def _python_test(name: str) -> bytes:
    return f"def {name}():\n    {_python_failure('    ')}\n".encode()


def _python_failure(indent: str) -> str:
    n = secrets.randbelow(90) + 1
    return secrets.choice(_FAILURES).format(n=n, m=n + secrets.randbelow(9) + 1, i=indent)


def _node_failure() -> str:
    n = secrets.randbelow(90) + 1
    return secrets.choice(_NODE_FAILURES).format(n=n, m=n + 1)
