"""Tasks of every kind that cheats are tried on: one small program, judged by pytest, by scripts, by node:test."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cheatbench import HIDDEN, PLAIN_PYTEST, SOLVED, START, make_task
from woodshed.model import Task
from woodshed.model.probe import Probe
from woodshed.tasks.runners import node_files, script_files

REFERENCE = "sed -i s/a.-.b/a+b/ calc.py"
"""A whole solution, in one line."""
SCRIPT_HIDDEN = {name: content.decode() for name, content in script_files({
    "check_add.py": b"from calc import add\nassert add(2, 2) == 4\n",
    "check_add_negative.py": b"from calc import add\nassert add(2, -2) == 0\n",
    "check_mul.py": b"from calc import mul\nassert mul(2, 2) == 4\n",
}).items()}
SCRIPT_EXPECTED = ("check_add", "check_add_negative", "check_mul")
NODE_START = {"calc.mjs": "export const add = (a, b) => a - b;\n"}
NODE_SOLVED = "echo 'export const add = (a, b) => a + b;' > calc.mjs\n"
NODE_HIDDEN = {name: content.decode() for name, content in node_files({
    "add.test.mjs": b"import test from 'node:test';\nimport assert from 'node:assert';\n"
                    b"import { add } from '/workspace/calc.mjs';\ntest('adds', () => assert.equal(add(2, 2), 4));\n",
}).items()}
NODE_EXPECTED = ("test::adds",)
APART_HIDDEN = {
    "test.sh": f"{PLAIN_PYTEST} --rootdir=/tests /tests --junitxml=/logs/verifier/junit.xml\n",
    "test_add.py": "import sys\nsys.path.insert(0, '/workspace')\nfrom calc import add\n\n\n"
                   "def test_add():\n    assert add(2, 2) == 4\n",
}
NODE_COMMAND = next(line for line in NODE_HIDDEN["test.sh"].splitlines() if line.startswith("node "))
PACKAGE = json.dumps({"scripts": {"test": NODE_COMMAND}})
ADDS = "import sys, calc; print(calc.add(*map(int, sys.stdin.read().split())))"
PROBES = (Probe(name="adds", argv=("python3", "-c", ADDS), stdin="20 3", stdout="23\n"),
          Probe(name="multiplies", argv=("python3", "-c", "import calc; print(calc.mul(3, 4))"), stdout="12\n"))
NODE_ADDS = "import('/workspace/calc.mjs').then(({ add }) => console.log(add(20, 3)))"
NODE_PROBES = (Probe(name="adds", argv=("node", "-e", NODE_ADDS), stdout="23\n"),)


@dataclass(frozen=True)
class Ground:
    """Where a cheat is tried: the kind of task, and what of it differs. Names with a dot are hidden files."""

    kind: str = "pytest"
    more: tuple[tuple[str, Any], ...] = ()


PLAIN, SCRIPT, NODE = Ground(), Ground("script"), Ground("node")


def make_ground(folder: Path, ground: Ground) -> Task:
    """The task of ``ground``."""
    given: dict[str, Any] = dict(ground.more)
    environment, limits = given.pop("environment", {}), given.pop("limits", None)
    reference = given.pop("reference", False)
    hidden, expected = {"script": (SCRIPT_HIDDEN, SCRIPT_EXPECTED), "node": (NODE_HIDDEN, NODE_EXPECTED),
                        "apart": (APART_HIDDEN, ("test_add::test_add",))}.get(ground.kind, (HIDDEN, None))
    hidden = {**hidden, **{name: given.pop(name) for name in list(given) if "." in name}}
    if expected is not None:
        given["expected"] = expected
    node = ground.kind == "node"
    task = make_task(folder, start={**NODE_START, "package.json": PACKAGE} if node else START, hidden=hidden,
                     solve=NODE_SOLVED if node else SOLVED, **given)
    if reference and task.solution is not None:
        (task.solution / "calc.py").write_text(START["calc.py"].replace("a - b", "a + b"))
    world = task.environment.model_copy(update={"env": environment, **({"limits": limits} if limits else {})})
    return task.model_copy(update={"environment": world})
