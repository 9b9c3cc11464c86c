"""Rows of SWE-bench and its kin become tasks: an issue, the files of a commit without its history, hidden tests.

The patches are applied here, once, by a git that runs nothing of the repository's; what they make lies in the task:
the start, the tests as they judge, and the reference. No network is used, and nothing of a row is ever run here.
"""

from __future__ import annotations

import glob
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from posixpath import basename

from woodshed.errors import UsageError
from woodshed.model import Framework
from woodshed.tasks.collection import Progress, check_out, quiet, write_collection
from woodshed.tasks.declare import WORKDIR
from woodshed.tasks.git import apply_patch
from woodshed.tasks.mine.paths import Kind, kind_of
from woodshed.tasks.mine.project import Project
from woodshed.tasks.mine.runner import OWN, linked_files
from woodshed.tasks.nodeids import Defined, mapped
from woodshed.tasks.parquet import read_parquet
from woodshed.tasks.rows import Item, read_items
from woodshed.tasks.sources import Sources, differing, twin
from woodshed.tasks.swe_rows import Case, case_of
from woodshed.tasks.write import Draft

Refused = Callable[[UsageError], None]
"""Hears of a row that makes no task."""
VERIFIER_S, AGENT_S = 1800.0, 3600.0
_TASK = """\
The source of `{repo}` lies in the current folder. Change it so that what follows is resolved. Tests that you do not see
judge the result; every test that passes today must still pass.

{statement}
"""


def swe_tasks(
    file: Path, repo_dir: Path, out: Path, *, only: Sequence[str] = (), limit: int | None = None,
    requirements: Sequence[str] | None = None, refused: Refused | None = None, force: bool = False,
    progress: Progress = quiet,
) -> list[Path]:
    """The task folders ``out``/INSTANCE_ID of the rows of ``file`` (JSONL or Parquet), in their order.

    ``only`` are instance ids. ``requirements`` take the place of what the repository declares. Raises UsageError naming
    file, line and field of the first row that makes no task, and then leaves ``out`` as it was; with ``refused`` such
    rows are told to it and left out.
    """
    check_out(out, force)
    items = read_parquet(file) if file.suffix == ".parquet" else read_items(file)
    rows = _Rows(items, only, limit, refused)
    folder = repo_dir.expanduser().resolve()
    with Sources(folder) as sources, tempfile.TemporaryDirectory(prefix="woodshed-swe-") as work:
        drafts = rows.drafts(sources, Path(work), requirements)
        made = write_collection(out, drafts, total=limit, force=force, progress=progress, refused=rows.refuse)
    if not made:
        raise UsageError("no row made a task", file=file, remedy="Is this the right file? See what was refused.")
    return made


@dataclass(slots=True)
class _Rows:
    """The rows that are asked for, and where each that was begun stands."""

    items: Iterable[Item]
    only: Sequence[str]
    limit: int | None
    refused: Refused | None
    begun: dict[str, Item] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)

    def drafts(
        self, sources: Sources, work: Path, requirements: Sequence[str] | None
    ) -> Iterator[tuple[str, Draft]]:
        """(name, draft) of each row, whose files lie in ``work`` until the next is asked for."""
        for item in self.items:
            if self.limit is not None and len(self.begun) - len(self.left_out) >= self.limit:
                return
            with tempfile.TemporaryDirectory(dir=work) as folder:
                try:
                    case = case_of(item)
                    if self.only and case.name not in self.only:
                        continue
                    if case.name.casefold() in self.begun:
                        raise item.wrong("instance_id", f"{case.name!r} is the id of two rows", "Leave one out.")
                    draft = _made(case, sources, Path(folder), requirements)
                except UsageError as error:
                    self._tell(_placed(error, item))
                    continue
                self.begun[case.name.casefold()] = item
                yield case.name, draft

    def refuse(self, name: str, error: UsageError) -> None:
        """A draft made no task."""
        self.left_out.add(name.casefold())
        self._tell(_placed(error, self.begun[name.casefold()]))

    def _tell(self, error: UsageError) -> None:
        if self.refused is None:
            raise error from None
        self.refused(error)


def _placed(error: UsageError, item: Item) -> UsageError:
    """``error`` with the row's file and line, where it names another place."""
    where = f"{item.file}:{item.line}"
    if str(error.file or "").startswith(where):
        return error
    message = f"{error.file}: {error.message}" if error.file is not None else error.message
    return UsageError(message, file=where, field=error.field, remedy=error.remedy)


def _made(case: Case, sources: Sources, folder: Path, requirements: Sequence[str] | None) -> Draft:
    """``case`` as a draft; its start lies in ``folder`` until it is written."""
    with sources.tree(case.repo, case.commit) as (tree, commit):
        start = twin(tree, folder / "start")
        if case.bug:
            _apply(case, start, case.bug, "patch")
        judged = twin(start, folder / "judged")
        if case.test_patch:
            _apply(case, judged, case.test_patch, "test_patch")
        for path, content in case.tests.items():
            (judged / path).parent.mkdir(parents=True, exist_ok=True)
            (judged / path).unlink(missing_ok=True)
            (judged / path).write_bytes(content)
        after = _after(case, start, tree, folder, sources)
        return _draft(replace(case, commit=commit), start, judged, after, requirements)


def _after(case: Case, start: Path, tree: Path, folder: Path, sources: Sources) -> Path:
    """A twin of ``start`` in which the reference was applied."""
    if case.bug:
        return tree
    after = twin(start, folder / "after")
    if case.fix:
        _apply(case, after, case.fix, "patch")
        return after
    with sources.tree(case.repo, case.fixed_by) as (fixed, _):
        _take_source(fixed, after)
    return after


def _take_source(fixed: Path, after: Path) -> None:
    """What is no test in ``fixed`` stands in ``after`` too, and what is not in ``fixed`` is gone from it."""
    for path in _files(fixed) | _files(after):
        new, old = fixed / path, after / path
        if kind_of(path) in (Kind.TEST, Kind.SUPPORT) or _same(new, old):
            continue
        if old.is_symlink() or old.exists():
            old.unlink()
        if new.is_symlink():
            old.symlink_to(new.readlink())
        elif new.is_file():
            old.parent.mkdir(parents=True, exist_ok=True)
            old.write_bytes(new.read_bytes())
            old.chmod(new.stat().st_mode & 0o777)


def _same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    if not one.is_file() or not other.is_file():
        return False
    return one.stat().st_mode == other.stat().st_mode and one.read_bytes() == other.read_bytes()


def _files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or path.is_file()}


def _apply(case: Case, folder: Path, patch: bytes, field: str) -> None:
    try:
        apply_patch(folder, patch)
    except UsageError as error:
        raise case.item.wrong(field, f"does not apply to {case.repo} at {case.commit[:40]}: {error.message}",
                              "Is the source the right one?") from None


def _draft(case: Case, start: Path, judged: Path, after: Path, requirements: Sequence[str] | None) -> Draft:
    changed, _ = differing(start, judged)
    files = _paths(judged, [path for path in changed if not (judged / path).is_symlink()])
    project = Project.of(sorted(_files(start)), lambda path: _content(start / path))
    needed, expected, lost = _expected(case, judged, files)
    hidden = {path: content for path, content in {**files, **_paths(judged, needed)}.items() if path not in OWN}
    changed_or_gone, gone = differing(start, after)
    known = (*project.patterns(), *(basename(path) for path in needed))
    declared = project.needs({path: text for path, text in hidden.items() if path.endswith(".py")}).declared
    return Draft(
        instruction=_TASK.format(repo=case.repo, statement=case.statement.strip()),
        tree=start,
        workspace={path: content for path, content in project.generated().items() if not (start / path).exists()},
        tests=linked_files(
            hidden, workspace=WORKDIR, patterns=tuple(dict.fromkeys(known)), options=project.options(), chosen=needed,
            pythonpath=[f"{WORKDIR}/{base}".rstrip("/") for base in project.bases],
        ),
        solution=_solution(after, changed_or_gone, gone),
        framework=Framework.PYTEST,
        expected_tests=tuple(sorted(expected)),
        protected=tuple(_pattern(case, path) for path in sorted(hidden)),
        requirements=tuple(requirements) if requirements is not None else case.requirements or declared,
        agent_timeout_s=AGENT_S,
        verifier_timeout_s=VERIFIER_S,
        source=f"https://github.com/{case.repo}" if "/" in case.repo else None,
        metadata={"dataset": case.family, "instance_id": case.name, "repository": case.repo, "commit": case.commit,
                  "fail_to_pass": len(case.fail_to_pass), "pass_to_pass": len(case.pass_to_pass),
                  **({"unmapped": len(lost)} if lost else {}), **case.facts},
    )


def _expected(case: Case, judged: Path, files: Mapping[str, bytes]) -> tuple[list[str], list[str], list[str]]:
    """(files of tests, report ids, names of pass-to-pass tests that are no ids here). Raises UsageError."""
    defined = Defined({path: content for path, content in files.items() if path.endswith(".py")})
    field = "expected_output_json" if case.family == "r2e" else "FAIL_TO_PASS"
    must, unknown = mapped(case.fail_to_pass, defined)
    if not must or (unknown and case.family != "r2e"):
        raise case.item.wrong(field, f"{(unknown or ['nothing'])[0][:120]!r} is no test that pytest could report",
                              "Leave the row out: only tests of pytest, by whole ids, can be demanded.")
    keep, lost = mapped(case.pass_to_pass, defined)
    wanted = {**keep, **must}
    for path in dict.fromkeys(wanted.values()):
        pure = Path(path)
        if pure.is_absolute() or ".." in pure.parts or not (judged / path).is_file() or (judged / path).is_symlink():
            named = field if path in must.values() else "PASS_TO_PASS"
            raise case.item.wrong(named, f"no such test file: {path[:120]!r}",
                                  "Is the source the right one?")
    return list(dict.fromkeys(wanted.values())), list(wanted), [*lost, *unknown]


def _paths(root: Path, paths: Iterable[str]) -> dict[str, bytes]:
    return {path: content for path in paths if (content := _content(root / path)) is not None}


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def _pattern(case: Case, path: str) -> str:
    if path != path.strip() or path.startswith(("!", "#")) or not path.isprintable():
        raise case.item.wrong("test_patch", f"{path[:120]!r} is no plain path", "Leave the row out.")
    return glob.escape(path)


def _solution(after: Path, changed: Sequence[str], gone: Sequence[str]) -> dict[str, bytes]:
    """The files that the reference changes, as it leaves them, and the script that puts them in place."""
    if not changed and not gone:
        raise UsageError("the patch changes nothing", field="patch", remedy="Leave the row out.")
    files = {f"files/{path}": (after / path).read_bytes() for path in changed if not (after / path).is_symlink()}
    lines = [f"rm -rf -- {shlex.quote(path)}" for path in gone]
    if files:
        lines.append("cp -R /solution/files/. .")
    for path in changed:
        place = after / path
        if place.is_symlink():
            lines.append(f"mkdir -p -- {shlex.quote(str(Path(path).parent))}")
            lines.append(f"ln -sfn -- {shlex.quote(str(place.readlink()))} {shlex.quote(path)}")
        else:
            lines.append(f"chmod {'755' if place.stat().st_mode & 0o100 else '644'} -- {shlex.quote(path)}")
    script = "\n".join(["#!/bin/bash", "set -e", *lines]) + "\n"
    return {"solve.sh": script.encode("utf-8", "surrogateescape"), **files}
