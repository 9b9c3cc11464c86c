"""Does the start give the solution away? In its files, compared with the reference; and in what git kept of it. Pure
but for reading the folders that it is given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path

from woodshed.errors import EnvironmentFault, UsageError
from woodshed.tasks.git import Repository, opened

_WHOLE = 40
"""Characters, blanks apart, from which a whole file that stands elsewhere is no accident."""
_PART_LINES, _PART = 3, 80
"""Lines, and characters without blanks, from which lines of the reference that stand elsewhere are no accident."""
_LINES = 20_000  # of a file whose difference is taken; a longer one is compared whole
_MARKS = re.compile(rb"^(?:#|//|--|;|%|\*|/\*|<!--|>|\+)+|(?:\*/|-->)$")
_SHOWN = 5
_HISTORIES = 20


def leaked_files(
    start: Mapping[str, bytes], solved: Mapping[str, bytes | None], solution: Mapping[str, bytes]
) -> list[str]:
    """What of the reference already stands in the start, a sentence each.

    ``solution`` is the reference's own folder. A file whose name the reference itself speaks is the task's material
    (what is to be copied, renamed, restored).
    """
    spoken = b"\n".join(solution.values())
    found = []
    for name, content in start.items():
        if _spoken(name, spoken) or _size(content) < _WHOLE:
            continue
        for what, reason in _copies(name, content, solved, solution):
            found.append(f"{name} {reason} {what}")
            break
    found += [sentence for sentence in _parts(start, solved, spoken) if sentence.split(" ")[0] not in
              {told.split(" ")[0] for told in found}]
    return found[:_SHOWN]


def _spoken(name: str, by: bytes) -> bool:
    """True where the last part of ``name`` stands in the text as a word of its own."""
    word = re.escape(name.rpartition("/")[2].encode("utf-8", "surrogateescape"))
    return re.search(rb"(?<![\w.-])" + word + rb"(?![\w-]|\.\w)", by) is not None


def _copies(
    name: str, content: bytes, solved: Mapping[str, bytes | None], solution: Mapping[str, bytes]
) -> Iterator[tuple[str, str]]:
    plain = content.split()
    for other, wanted in solution.items():
        if wanted.split() == plain:
            yield f"solution/{other}", "is the reference's own"
    for other, end in solved.items():
        if other != name and end is not None and end.split() == plain:
            yield other, "is what the reference makes of"


def _parts(start: Mapping[str, bytes], solved: Mapping[str, bytes | None], spoken: bytes) -> Iterator[str]:
    """Files of the start that hold the lines which the reference adds, in order, perhaps commented out."""
    bare = {name: b"\n" + b"\n".join(_bare(content)) + b"\n" for name, content in start.items()}
    for path, end in solved.items():
        if end is None:
            continue
        for added in _added(start.get(path, b""), end):
            if len(added) < _PART_LINES or sum(map(len, added)) < _PART:
                continue
            wanted = b"\n" + b"\n".join(added) + b"\n"
            for name, text in bare.items():
                own = name == path and wanted in b"\n" + b"\n".join(_plain(start[name])) + b"\n"
                if wanted in text and not own and (name == path or not _spoken(name, spoken)):
                    yield f"{name} holds lines that the reference adds to {path}"


def _added(before: bytes, after: bytes) -> Iterator[list[bytes]]:
    """The added lines of each difference, without blanks around them and without empty ones."""
    old, new = before.split(b"\n"), after.split(b"\n")
    if len(old) + len(new) > _LINES:
        return
    for tag, _, _, first, last in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag in ("insert", "replace"):
            yield [line.strip() for line in new[first:last] if line.strip()]


def _plain(content: bytes) -> list[bytes]:
    return [line.strip() for line in content.split(b"\n") if line.strip()]


def _bare(content: bytes) -> list[bytes]:
    """Lines without blanks around them and without what makes them comments or a diff's additions."""
    return [bare for line in content.split(b"\n") if (bare := _MARKS.sub(b"", line.strip()).strip())]


def _size(content: bytes) -> int:
    return len(b"".join(content.split()))


def leaked_history(folders: Sequence[Path]) -> list[str]:
    """What version control below ``folders`` keeps beyond the files that stand there, a sentence each."""
    found: list[str] = []
    for folder in folders:
        for place in _repositories(folder):
            name = place.relative_to(folder).as_posix() or "."
            found += [f"{name}: {sentence}" for sentence in _history(place)]
            if len(found) >= _SHOWN:
                return found[:_SHOWN]
    return found


def _repositories(folder: Path) -> Iterator[Path]:
    """Git directories (of checkouts, and bare ones) at and below ``folder``; links are not followed."""
    count = 0
    for place, below, names in os.walk(folder):
        here = Path(place)
        if {"HEAD"} <= set(names) and {"objects", "refs"} <= set(below):
            below[:] = []
            count += 1
            yield here
        if count >= _HISTORIES:
            return


def _history(place: Path) -> list[str]:
    """One repository: objects that its one commit does not need, further commits and refs, logs of what was."""
    told = []
    if any(_lines(log) > 1 for log in (place / "logs").rglob("*") if log.is_file() and not log.is_symlink()):
        told.append("a reflog tells of earlier states")
    told += [f"{name} names another state" for name in ("ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD")
             if (place / name).exists()]
    try:
        with opened(place) as repository:
            told += _beyond(repository)
    except (UsageError, EnvironmentFault) as error:
        told.append(f"its history cannot be read, so nothing vouches for it ({error})")
    return told


def _beyond(repository: Repository) -> list[str]:
    told = []
    head = repository.git("rev-parse", "--verify", "--quiet", "HEAD", ok=(0, 1)).strip()
    if not head:
        reachable: set[bytes] = set()
    else:
        commits = repository.git("rev-list", "HEAD").split()
        if len(commits) > 1:
            told.append(f"{len(commits)} commits up to HEAD; a start has one")
        reachable = {line.split(b" ")[0] for line in repository.git("rev-list", "--objects", "HEAD").splitlines()}
    refs = repository.git("for-each-ref", "--format=%(objectname) %(refname)").splitlines()
    other = [line.split(b" ", 1)[1].decode(errors="replace") for line in refs if line.split(b" ")[0] != head]
    if other:
        told.append(f"refs beside HEAD: {', '.join(other[:3])}")
    listed = repository.git("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    further = len(set(listed) - reachable)
    if further:
        told.append(f"{further} objects that the start does not need")
    return told


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.stat().st_size < 10_000_000 else 2
