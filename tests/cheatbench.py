"""A task worth cheating on, boxes to cheat in, and the verifier that believes what it is told."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from woodshed.interfaces import Sandbox
from woodshed.model import (
    ChangeSet,
    EnvironmentSpec,
    EventKind,
    SandboxPolicy,
    Task,
    TestOutcome,
    Upload,
    Valid,
    VerifierSpec,
)
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.verify.reports import Unreadable, read_ctrf, read_junit
from woodshed.verify.verifier import FreshVerifier

START = {
    "calc.py": "def add(a, b):\n    return a - b\n\n\ndef mul(a, b):\n    return a * b\n",
    "tests/helper.py": "def same(found, wanted):\n    assert found == wanted\n",
    "tests/test_visible.py": "from calc import mul\n\n\ndef test_mul_visible():\n    assert mul(2, 3) == 6\n",
}
SOLVED = "cat > calc.py <<'E'\ndef add(a, b):\n    return a + b\n\n\ndef mul(a, b):\n    return a * b\nE\n"
HIDDEN = {
    # As SWE-bench does it: hidden tests join the repository's own, and its configuration holds.
    "test.sh": "cp /tests/test_*.py tests/\npython3 -m pytest -q tests --junitxml=/logs/verifier/junit.xml\n",
    "test_add.py": "from calc import add\nfrom helper import same\n\n\ndef test_add():\n    same(add(2, 2), 4)\n\n\n"
                   "def test_add_negative():\n    same(add(2, -2), 0)\n",
    "test_mul.py": "from calc import mul\n\n\ndef test_mul():\n    assert mul(3, 4) == 12\n",
}
EXPECTED = ("tests.test_add::test_add", "tests.test_add::test_add_negative", "tests.test_mul::test_mul")


class Blobs:
    """Blobs in memory."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def put(self, content: bytes | BinaryIO) -> str:
        data = content if isinstance(content, bytes) else content.read()
        self.held[digest := hashlib.sha256(data).hexdigest()] = data
        return digest

    def open(self, sha256: str) -> BinaryIO:
        return io.BytesIO(self.held[sha256])


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def make_task(folder: Path, *, start: Mapping[str, str] = START, hidden: Mapping[str, str] = HIDDEN,
              solve: str | None = SOLVED, expected: tuple[str, ...] = EXPECTED, **verifier: Any) -> Task:
    """A task on disk. ``solve`` is the reference script, None for a task without one."""
    workspace = write_files(folder / "workspace", start)
    tests = write_files(folder / "tests", hidden)
    solution = write_files(folder / "solution", {"solve.sh": solve}) if solve is not None else None
    return Task(
        id=folder.name, folder=folder, digest=f"sha256:{folder}", instruction="Mend add.", solution=solution,
        environment=EnvironmentSpec(uploads=(Upload(source=workspace, target="/workspace"),)),
        verifier=VerifierSpec(**{"tests": tests, "timeout_s": 60.0, "capture": ("/workspace",),
                                 "expected_tests": expected, **verifier}))


@dataclass
class Bench:
    """An engine, a verifier, and what was seen."""

    engine: NativeEngine
    verifier: FreshVerifier = field(default_factory=FreshVerifier)
    blobs: Blobs = field(default_factory=Blobs)
    events: list[tuple[EventKind, dict[str, Any]]] = field(default_factory=list)

    async def box(self, task: Task) -> Sandbox:
        return await self.engine.create(task.environment, SandboxPolicy(limits=task.environment.limits))

    async def work(self, task: Task, script: str) -> ChangeSet:
        """What ``script`` changes in a box of the agent."""
        box = await self.box(task)
        try:
            done = await box.exec(["bash", "-ec", script])
            assert done.exit_code == 0, done.stderr
            await box.kill_all()
            return await box.changes(self.blobs, roots=task.verifier.capture or ("/workspace",))
        finally:
            await box.close()

    async def judge(self, task: Task, script: str) -> Valid:
        """The verdict on what ``script`` changes."""
        return await self.verify(task, await self.work(task, script))

    async def verify(self, task: Task, changes: ChangeSet) -> Valid:
        return await self.verifier.verify(task, changes, self.blobs, self.engine,
                                          lambda kind, data: self.events.append((kind, dict(data))))

    async def naive(self, task: Task, script: str, *, linger_s: float = 0.0) -> dict[str, bool]:
        """What verifiers conclude that run the tests in the agent's own box and believe one thing they see."""
        box = await self.box(task)
        try:
            done = await box.exec(["bash", "-ec", script])
            assert done.exit_code == 0, done.stderr
            await box.upload(task.verifier.tests, "/tests")
            ran = await box.exec(["bash", "/tests/test.sh"], env=task.verifier.env, timeout_s=task.verifier.timeout_s)
            if linger_s:
                await box.exec(f"sleep {linger_s}")  # as long as a harness takes to fetch a report from a live box
            return {"exit": ran.exit_code == 0, "report": await _believed(box, task.verifier.expected_tests),
                    "reward": (await _content(box, "reward.txt")).strip() == b"1"}
        finally:
            await box.close()


async def _content(box: Sandbox, name: str) -> bytes:
    return (await box.exec(f"cat /logs/verifier/{name} 2>/dev/null")).stdout


async def _believed(box: Sandbox, expected: tuple[str, ...]) -> bool:
    for name, reader in (("junit.xml", read_junit), ("ctrf.json", read_ctrf)):
        try:
            report = reader(await _content(box, name))
        except Unreadable:
            continue
        return all(TestOutcome.PASSED in report.outcomes(wanted) for wanted in expected)
    return False
