"""The commits of a repository and what each changed, read by :mod:`woodshed.tasks.git`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from woodshed.errors import UsageError
from woodshed.tasks.git import Repository

MAX_MESSAGE = 20_000
"""Characters of a commit message that are looked at."""
_SINCE = re.compile(r"[\w .,:+/-]{1,60}")
_TAKES_BACK = re.compile(r"This reverts commit ([0-9a-f]{7,64})")


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit. ``message`` is text of theirs, as hostile as everything else; ``at`` is UTC."""

    id: str
    parents: tuple[str, ...]
    at: datetime
    message: str

    @property
    def subject(self) -> str:
        """The message's first line."""
        return self.message.strip().split("\n", 1)[0].strip()

    @property
    def takes_back(self) -> tuple[str, ...]:
        """Ids (maybe short) of the commits that this one says it reverts."""
        return tuple(_TAKES_BACK.findall(self.message))

    @property
    def reverts(self) -> bool:
        """True for a commit that takes another back."""
        return bool(self.takes_back) or self.subject.lower().startswith(('revert "', "revert: ", "revert '"))


@dataclass(frozen=True, slots=True)
class Changed:
    """One path that a commit changed: blob ids before and after, None where there is no plain file."""

    path: str
    before: str | None
    after: str | None


def commits(repository: Repository, *, ref: str = "HEAD", since: str | None = None) -> list[Commit]:
    """The commits that ``ref`` leads to, newest first. Raises UsageError.

    ``since`` is a commit of the history, which is left out with all before it, or a date as git understands them.
    """
    wanted = [_resolved(repository, ref)]
    if since is not None:
        wanted += _since(repository, since)
    raw = repository.git("log", "--topo-order", "--format=tformat:%H%x00%P%x00%ct%x00%B%x00", *wanted)
    fields = raw.decode("utf-8", "replace").split("\0")
    return [_commit(fields[at : at + 4]) for at in range(0, len(fields) - 4, 4)]


def changes(repository: Repository, commit: Commit) -> list[Changed]:
    """What ``commit`` changed against its first parent, renames as a removal and an addition, links left out."""
    raw = repository.git("diff-tree", "-r", "-z", "--raw", "--no-renames", "--full-index", commit.parents[0], commit.id)
    fields = [part for part in raw.split(b"\0") if part]
    found = []
    for head, name in zip(fields[::2], fields[1::2], strict=True):
        old_mode, new_mode, old, new, _ = head.removeprefix(b":").decode().split()
        path = name.decode("utf-8", "surrogateescape")
        found.append(Changed(path, _plain(old_mode, old), _plain(new_mode, new)))
    return [change for change in found if change.before != change.after]


def _resolved(repository: Repository, ref: str) -> str:
    try:
        return repository.commit(ref)
    except UsageError:
        if ref == "HEAD":
            raise UsageError("has no commit yet", file=repository.path, remedy="Name a repository with history.") \
                from None
        raise


def _since(repository: Repository, since: str) -> list[str]:
    try:
        return [f"^{repository.commit(since)}"]
    except UsageError:
        if not _SINCE.fullmatch(since):
            raise UsageError(f"{since[:80]!r} is no date and no commit", field="--since",
                             remedy="Say 2025-01-31, '3 months ago', a tag or a commit.") from None
        return [f"--since={since}"]


def _commit(fields: list[str]) -> Commit:
    head, parents, seconds, message = fields
    at = datetime.fromtimestamp(min(max(int(seconds), 0), 2**32), UTC)
    return Commit(head.strip(), tuple(parents.split()), at, message[:MAX_MESSAGE])


def _plain(mode: str, blob: str) -> str | None:
    return blob if mode in ("100644", "100755", "100664") else None
