"""New tasks by hand: a scaffold that is green as it is, and a draft of what an attempt came to."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from woodshed.errors import StoreFault, UsageError
from woodshed.model import Attempt, Change, ChangeKind, ChangeSet, Event, EventKind, Framework, Run, Task
from woodshed.services import naming
from woodshed.services.history import history
from woodshed.services.home import Home
from woodshed.tasks.collection import check_place
from woodshed.tasks.endstate import End, draft_of_end
from woodshed.tasks.load import load_task
from woodshed.tasks.mine import slug
from woodshed.tasks.scaffold import HEADER, scaffold
from woodshed.tasks.write import Draft, write_task
from woodshed.verify.filter import filtered
from woodshed.verify.protect import Rules
from woodshed.verify.start import Start

_MAX_BYTES = 100_000_000
_MAX_SUGGESTED = 20
_LEFT_OUT = frozenset({".git", ".hg", ".svn", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"})


def new(folder: Path, framework: Framework) -> Task:
    """A first task in ``folder``, whose last part names it. Raises UsageError where something stands there."""
    folder = folder.expanduser().absolute()
    check_place(folder, False)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as place:
        made = Path(place) / folder.name
        write_task(made, scaffold(framework))
        file = made / "task.toml"
        file.write_text(HEADER.format(folder=folder.name) + file.read_text())
        load_task(made)
        made.rename(folder)
    return load_task(folder)


@dataclass(frozen=True, slots=True)
class Drafted:
    """A task drafted of an attempt: what it compares and runs, and what could not be recovered, a sentence each."""

    task: Task
    files: int
    commands: tuple[str, ...]
    suggested: tuple[str, ...]
    missing: tuple[str, ...]


def from_attempt(
    home: Home, attempt_id: str, out: Path, *, approve: bool = False, tree: Path | None = None,
    commands: Sequence[str] = (), name: str | None = None, force: bool = False,
) -> Drafted:
    """The task folder ``out``/NAME drafted of an attempt's start and its approved end state.

    A person approves: with ``approve`` the end state as it was captured, or with ``tree`` a folder that holds it as it
    should be. Raises UsageError without either, for an attempt without an end, and where its start is gone.
    """
    if any("\n" in command or not command.strip() for command in commands):
        raise UsageError("a command of more than one line, or of none", field="--command", remedy="Write it on one.")
    source = recover(home, attempt_id)
    if approve == (tree is not None):
        raise UsageError(
            f"a person must approve the end state of {source.attempt.id} before others are measured by it",
            remedy=f"Look at it (woodshed trace {source.attempt.id}), then say --approve; or lay it down with "
            "--export DIR, mend it there, and say --tree DIR.")
    changes = source.changes if tree is None else _changed(source.task, tree.expanduser(), home)
    end, missing = _end(source.task, changes, home)
    if not end:
        raise UsageError(f"{source.attempt.id} changed nothing that a verifier could compare", field="ATTEMPT",
                         remedy="Choose another attempt, or approve a folder by --tree.")
    suggested = tuple(command for command in source.commands if command not in commands)
    draft = draft_of_end(_world(source), end, commands=commands, suggested=suggested)
    chosen = name or f"{slug(source.task.id.rpartition('/')[2])}-from-{slug(source.attempt.id)}"
    task = _placed(out.expanduser().absolute() / chosen, draft, source.task, force)
    return Drafted(task, len(end.files) + len(end.links) + len(end.gone), tuple(commands), suggested,
                   (*source.missing, *missing, *_unsaid(source.task)))


def export_end(home: Home, attempt_id: str, into: Path) -> Path:
    """The end state of an attempt's working folder lies in ``into``, to be mended and approved by ``--tree``."""
    source = recover(home, attempt_id)
    into = into.expanduser().absolute()
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise UsageError("is not empty", file=into, field="--export", remedy="Choose a new folder.")
    end, _ = _end(source.task, source.changes, home)
    into.mkdir(parents=True, exist_ok=True)
    _lay_start(source.task, into)
    for path in end.gone:
        _cleared(into / path)
    for path, content in end.files.items():
        place = _cleared(into / path)
        _beneath(into, place)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        place.chmod(0o755 if path in end.executable else 0o644)
    for path, target in end.links.items():
        place = _cleared(into / path)
        _beneath(into, place)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
    return into


@dataclass(frozen=True, slots=True)
class Source:
    """What the store has of an attempt: its task as it was, its captured changes, and what it ran with success last."""

    attempt: Attempt
    task: Task
    changes: ChangeSet
    commands: tuple[str, ...] = ()
    missing: tuple[str, ...] = field(default=())


def recover(home: Home, attempt_id: str) -> Source:
    """Everything that ``attempt_id`` left. Raises UsageError where its start or its end state is not to be had."""
    attempt = naming.attempt(home, attempt_id)
    run = home.store.run(attempt.run)
    task = _start_of(run, attempt)
    events = history(home, attempt)
    captured = next((event for event in reversed(events) if event.kind is EventKind.CHANGES), None)
    if captured is None:
        raise UsageError(f"{attempt.id} has no captured end state (it has not ended, or broke before)", field="ATTEMPT",
                         remedy="Choose an attempt that was verified.")
    if "changes" not in captured.data:
        raise UsageError(f"{attempt.id} changed more files than an event holds", field="ATTEMPT",
                         remedy="Choose an attempt with fewer changes.")
    changes = ChangeSet.model_validate(captured.data)
    missing = [f"never captured: {_shown(entry)}" for entry in changes.refused]
    if changes.over_limit:
        missing.append(f"the capture was cut at the limit {changes.over_limit}: the end state is not whole")
    return Source(attempt, task, changes, _commands(events), tuple(missing))


def _start_of(run: Run, attempt: Attempt) -> Task:
    """The task as the attempt saw it: its folder must still be there, unchanged."""
    for folder in run.spec.tasks:
        try:
            task = load_task(Path(folder))
        except UsageError:
            continue
        if task.id == attempt.task:
            if run.spec.digests.get(folder) not in (None, task.digest):
                raise UsageError(f"the task has changed since {attempt.id} began, so its start is not known",
                                 file=task.folder, remedy="Restore the folder as it was.")
            return task
    raise UsageError(f"the folder of the task {attempt.task!r} is gone, and with it the start of {attempt.id}",
                     field="ATTEMPT", remedy=f"Restore it: {', '.join(run.spec.tasks[:3])}")


def _commands(events: Sequence[Event]) -> tuple[str, ...]:
    """Single-line commands that ended with exit status 0 after the last file was edited by a tool, newest first."""
    calls: dict[str, str] = {}
    found: dict[str, None] = {}
    for event in events:
        if event.kind is EventKind.TOOL_CALL:
            arguments = event.data.get("arguments")
            command = arguments.get("command") if isinstance(arguments, dict) else None
            if isinstance(command, str):
                calls[str(event.data.get("call"))] = command.strip()
            else:
                found.clear()
        elif event.kind is EventKind.TOOL_RESULT and event.data.get("exit_code") == 0:
            command = calls.get(str(event.data.get("call")), "")
            if command and "\n" not in command and command.isprintable() and len(command) < 300 and \
                    "/solution/" not in command:
                found[command] = None
    return tuple(reversed(list(found)))[:_MAX_SUGGESTED]


def _end(task: Task, changes: ChangeSet, home: Home) -> tuple[End, list[str]]:
    """What a verifier would restore of ``changes`` below the workdir, and what it would not, in sentences."""
    start = Start.of(task.environment)
    kept = filtered(changes, Rules.of(task, start.exists), start, home.blobs)
    missing = [f"protected, so no attempt may change it ({touch.value}): {_shown(path)}" for path, touch in kept.touched
               if path not in {change.path for change in kept.changes.changes}]
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    gone: list[str] = []
    executable: set[str] = set()
    size = 0
    prefix = task.environment.workdir.rstrip("/") + "/"
    for change in kept.changes.changes:
        path = change.path.removeprefix(prefix)
        if path == change.path or "\n" in path or "\n" in (change.target or "") or " -> " in path:
            if change.kind is not ChangeKind.DIRECTORY:
                missing.append(f"outside the working folder, or of a name that no list holds: {_shown(change.path)}")
            continue
        size += change.size
        if size > _MAX_BYTES:
            raise UsageError(f"more than {_MAX_BYTES} bytes changed", field="ATTEMPT",
                             remedy="Approve a smaller --tree.")
        if change.kind is ChangeKind.FILE:
            files[path] = _content(change, home)
            executable |= {path} if change.mode & 0o100 else set()
        elif change.kind is ChangeKind.SYMLINK:
            links[path] = change.target or ""
        elif change.kind is ChangeKind.DELETED:
            gone.append(path)
        elif change.kind is ChangeKind.OPAQUE:
            gone += _below(start, change.path, prefix)
    again = files.keys() | links.keys()
    return End(files, frozenset(executable), links, tuple(sorted(set(gone) - again))), missing


def _below(start: Start, path: str, prefix: str) -> list[str]:
    """The files of the start below a folder that was replaced."""
    found: list[str] = []
    for child, folder in start.children(path):
        found += _below(start, child, prefix) if folder else [child.removeprefix(prefix)]
    return found


def _content(change: Change, home: Home) -> bytes:
    if change.sha256 is None:
        raise StoreFault(f"{change.path} was captured without its content")
    with home.blobs.open(change.sha256) as source:
        return source.read()


def _changed(task: Task, tree: Path, home: Home) -> ChangeSet:
    """What differs between the task's start and ``tree``, a folder that a person approved as the end state."""
    if not tree.is_dir():
        raise UsageError("no such folder", file=tree, field="--tree", remedy="Lay one down with --export DIR.")
    workdir, start = task.environment.workdir.rstrip("/"), Start.of(task.environment)
    found: list[Change] = []
    seen: set[str] = set()
    for folder, below, names in os.walk(tree):
        links = [name for name in below if Path(folder, name).is_symlink()]
        below[:] = sorted(name for name in below if name not in links and name not in _LEFT_OUT)
        for name in sorted((*names, *links)):
            place = Path(folder, name)
            path = f"{workdir}/{place.relative_to(tree).as_posix()}"
            info = place.lstat()
            seen.add(path)
            if stat.S_ISLNK(info.st_mode):
                found.append(Change(path=path, kind=ChangeKind.SYMLINK, target=os.readlink(place)))  # noqa: PTH115 - raw
            elif stat.S_ISREG(info.st_mode):
                content = place.read_bytes()
                if start.read(path) != content:
                    found.append(Change(path=path, kind=ChangeKind.FILE, mode=info.st_mode & 0o777, size=len(content),
                                        sha256=home.blobs.put(content)))
    gone = [f"{workdir}/{name}" for name in _below(start, workdir, f"{workdir}/")]
    found += [Change(path=path, kind=ChangeKind.DELETED) for path in gone
              if path not in seen and not _LEFT_OUT & set(path.split("/"))]
    return ChangeSet(changes=tuple(sorted(found, key=lambda change: change.path)))


def _world(source: Source) -> Draft:
    """The draft's world and words: as the attempt had them."""
    task, environment = source.task, source.task.environment
    limits = environment.limits.model_dump(exclude_defaults=True)
    allowed = ("memory_mb", "cpus", "pids", "disk_mb", "files", "output_bytes")
    return Draft(
        instruction=task.instruction, tests={}, requirements=environment.requirements, image=environment.image,
        workdir=environment.workdir, env=dict(environment.env), agent_timeout_s=task.agent_timeout_s,
        limits={key: value for key, value in limits.items() if key in allowed and value is not None},
        metadata={"drafted_from": source.attempt.id, "of_task": task.id, "of_digest": task.digest},
    )


def _unsaid(task: Task) -> list[str]:
    said = ["the hidden tests of the task it came from are no part of it: the draft compares files instead"]
    if task.environment.image != "host":
        said.append(f"the image {task.environment.image} must have python3 and bash for the draft verifier")
    if task.environment.setup:
        said.append("what the environment's setup command makes is made anew, and not compared")
    return said


def _placed(place: Path, draft: Draft, of: Task, force: bool) -> Task:
    check_place(place, force)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent) as scratch:
        made = Path(scratch) / place.name
        write_task(made, draft)
        _lay_start(of, made / "environment" / "workspace")
        load_task(made)
        shutil.rmtree(place, ignore_errors=True)
        made.rename(place)
    return load_task(place)


def _lay_start(task: Task, into: Path) -> None:
    workdir = task.environment.workdir.rstrip("/")
    for upload in task.environment.uploads:
        target = upload.target.rstrip("/")
        if target == workdir or target.startswith(workdir + "/"):
            place = into / target[len(workdir) + 1 :]
            if upload.source.is_dir():
                shutil.copytree(upload.source, place, symlinks=True, dirs_exist_ok=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(upload.source, place)


def _cleared(place: Path) -> Path:
    if place.is_symlink() or place.is_file():
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
    return place


def _beneath(root: Path, place: Path) -> None:
    """No link of the end state may lead a later file out of ``root``."""
    if not place.parent.resolve().is_relative_to(root.resolve()):
        raise UsageError("would lie outside the folder, by a link of the end state", file=place, field="--export",
                         remedy="This end state can only be approved as it is.")


def _shown(text: str) -> str:
    return text.encode("utf-8", "replace").decode()[:200]
