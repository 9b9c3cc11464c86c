"""Harbor task folders become Tasks. What cannot run, or cannot be understood, is an error with file, field, remedy."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from woodshed.errors import UsageError
from woodshed.model import Task
from woodshed.tasks.declare import Declared
from woodshed.tasks.folder import check_part, digest
from woodshed.tasks.refuse import refuse_unsupported
from woodshed.tasks.schema import TaskFile
from woodshed.tasks.steps import steps

MAX_TEXT_BYTES = 1_000_000
"""Of instruction.md and of task.toml."""
AGENT_TIMEOUT_S = 600.0
"""Where the task names none."""
MAX_DEPTH = 6
MAX_FOLDERS = 50_000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._-]{0,127})?")


def load_task(folder: Path) -> Task:
    """The Task in ``folder``. Raises UsageError naming file, field and remedy; reads, never runs anything.

    ``id`` is ``[task] name`` or the folder's name, ``group`` the name of the folder it lies in.
    """
    folder = folder.expanduser().resolve()
    if not folder.is_dir():
        raise UsageError("no such task folder", file=folder, remedy="Pass the folder that holds task.toml.")
    try:
        return _loaded(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        where = getattr(error, "filename", None) or folder
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot be read: {reason}", file=where, remedy="Mend its rights or its links.") from None


def _loaded(folder: Path) -> Task:
    sha256 = digest(folder)  # first: it refuses devices, FIFOs and links before anything is opened
    config = TaskFile.parse(_toml(folder / "task.toml"), file=folder / "task.toml")
    declared = Declared(config, folder)
    declared.check_version()
    refuse_unsupported(config, folder)
    solution = _solution(folder)
    parts = steps(declared, _instruction, solution, AGENT_TIMEOUT_S)
    for tests in {folder / "tests"} if not parts else {step.verifier.tests for step in parts}:
        _check_tests(tests, folder / "tests")
    return Task(
        id=_id(config, folder),
        group=folder.parent.name,
        folder=folder,
        digest=sha256,
        instruction=parts[-1].instruction if parts else _instruction(folder),
        environment=declared.environment(),
        verifier=parts[-1].verifier if parts else declared.verifier(),
        solution=parts[-1].solution if parts else solution,
        solution_env=declared.variables("solution.env", config.solution.env),
        agent_timeout_s=config.agent.timeout_sec or AGENT_TIMEOUT_S,
        metadata=config.metadata,
        network=declared.network(),
        steps=parts,
        step_reward=config.multi_step_reward_strategy or "mean",
        rules=declared.rules(parts),
        feedback=declared.feedback(parts),
        person=declared.config.woodshed.person,
    )


def find_tasks(paths: Sequence[Path]) -> list[Task]:
    """The tasks of ``paths``, each a task folder or a tree of them, in order of path; the same folder counts once.

    Raises UsageError for a path without tasks, for two tasks of one id, and for the first task that does not load.
    """
    folders = dict.fromkeys(folder for path in paths for folder in task_folders(path))
    tasks: dict[str, Task] = {}
    for folder in folders:
        task = load_task(folder)
        if task.id in tasks:
            raise UsageError(f"the id {task.id!r} is also that of {tasks[task.id].folder}", file=folder / "task.toml",
                             field="task.name", remedy="Give each its own name, or run them apart.")
        tasks[task.id] = task
    return list(tasks.values())


def task_folders(path: Path) -> list[Path]:
    """The task folders at or below ``path``, resolved and sorted, without reading them. Raises UsageError."""
    path = path.expanduser().resolve()
    if not path.exists():
        raise UsageError("no such folder", file=path, remedy="Pass a task folder, or a folder of task folders.")
    if not path.is_dir():
        raise UsageError("a file, not a folder", file=path, remedy=f"Pass the task folder, e.g. {path.parent}.")
    found = sorted(_below(path))
    if not found:
        raise UsageError(f"no task here (no task.toml down to {MAX_DEPTH} folders below)", file=path,
                         remedy="Import some with `woodshed tasks import`, or write one as docs/tasks.md shows.")
    return found


def _below(top: Path) -> Iterator[Path]:
    pending, seen = [(top, 0)], 0
    while pending:
        folder, depth = pending.pop()
        seen += 1
        if seen > MAX_FOLDERS:
            raise UsageError(f"more than {MAX_FOLDERS} folders", file=top, remedy="Pass a folder nearer the tasks.")
        if (folder / "task.toml").is_file():
            yield folder
        elif depth < MAX_DEPTH:
            pending += [(below, depth + 1) for below in _folders(folder)]


def _folders(folder: Path) -> list[Path]:
    """The folders in ``folder``, but hidden ones and links; none where it may not be read."""
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries
                    if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")]
    except PermissionError:
        return []


def _toml(file: Path) -> dict[str, Any]:
    text = _text(file, "Every task needs one, if only an empty one; docs/tasks.md shows an example.")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"broken TOML: {error or 'nested too deep'}", file=file,
                         remedy="Mend the line it names.") from None


def _text(file: Path, remedy: str) -> str:
    if not file.is_file():
        raise UsageError("missing", file=file, remedy=remedy)
    if file.stat().st_size > MAX_TEXT_BYTES:
        raise UsageError(f"larger than {MAX_TEXT_BYTES} bytes", file=file, remedy="Move data into the workspace.")
    try:
        return file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8 (byte {error.start})", file=file, remedy="Save it as UTF-8.") from None


def _instruction(folder: Path) -> str:
    text = _text(folder / "instruction.md", "Write what is to be done there.")
    if not text.strip():
        raise UsageError("empty", file=folder / "instruction.md", remedy="Write what is to be done there.")
    return text


def _check_tests(tests: Path, common: Path) -> None:
    if not (tests / "test.sh").is_file() and not (common / "test.sh").is_file():
        raise UsageError("no tests", file=tests / "test.sh",
                         remedy="Add the script that judges the result; docs/tasks.md shows the usual one.")
    check_part(tests.resolve(), "tests/")


def _solution(folder: Path) -> Path | None:
    solution = folder / "solution"
    if not solution.exists():
        return None
    if not (solution / "solve.sh").is_file():
        raise UsageError("a solution needs solve.sh", file=solution, remedy="Add it, or remove the folder.")
    check_part(solution.resolve(), "solution/")
    return solution


def _id(config: TaskFile, folder: Path) -> str:
    name = config.task.name if config.task is not None else folder.name
    if not _ID.fullmatch(name):
        where, field = (folder / "task.toml", "task.name") if config.task is not None else (folder, None)
        raise UsageError(f"{name!r} is no task name", file=where, field=field,
                         remedy="Use letters, digits, '.', '_' and '-', as name or org/name.")
    return name
