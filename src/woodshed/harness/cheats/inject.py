"""Pieces that cheats are made of: shell that puts text into files, Python and JavaScript that act when imported."""

from __future__ import annotations

import json
from xml.sax.saxutils import quoteattr

from woodshed.model import Task

_OURS = "! -path '*/tests/*' ! -path '*/test/*' ! -path '*/.*/*' ! -path '*/node_modules/*'"
_SOURCE = {
    "python": f"-name '*.py' ! -name 'test_*' ! -name '*_test.py' ! -name conftest.py {_OURS}",
    "node": f"\\( -name '*.js' -o -name '*.mjs' -o -name '*.ts' -o -name '*.mts' \\) ! -name '*.test.*' {_OURS}",
}


def into(name: str, text: str) -> str:
    """Shell that appends ``text`` to the file ``name``."""
    return f"mkdir -p \"$(dirname {name})\"\ncat >> {name} <<'CHEAT'\n{text}\nCHEAT\n"


def into_source(language: str, text: str) -> str:
    """Shell that appends ``text`` to every source file of the workspace that is no test: tests load some of them."""
    return (
        f"cat > /tmp/.payload <<'CHEAT'\n\n{text}\nCHEAT\n"
        f"find . -type f {_SOURCE[language]} -exec sh -c 'for f; do cat /tmp/.payload >> \"$f\"; done' sh {{}} +\n"
    )


def python(payload: str) -> str:
    """Python for :func:`into_source` that runs ``payload`` once in a process, however many modules have it."""
    return (
        "import builtins as _builtins\n"
        "if not hasattr(_builtins, '_played'):\n"
        "    _builtins._played = True\n"
        f"    exec(compile({payload!r}, __file__, 'exec'), {{'__name__': '_played'}})\n"
    )


def acts(payload: str) -> str:
    """Shell that makes the workspace's Python act when it is imported, once in a process."""
    return into_source("python", python(payload))


def junit(task: Task) -> str:
    """A forged report in which every expected test passed."""
    cases = ""
    for wanted in task.verifier.expected_tests:
        group, _, name = wanted.rpartition("::")
        cases += f"<testcase classname={quoteattr(group)} name={quoteattr(name)}/>"
    return f"<testsuites>{cases}</testsuites>"


def ctrf(task: Task) -> str:
    """The same in CTRF."""
    tests = [{"name": wanted, "status": "passed", "duration": 1} for wanted in task.verifier.expected_tests]
    return json.dumps({"results": {"tests": tests}})
