"""Whom an image means by USER: numbers, groups and home, by its own /etc/passwd and /etc/group.

Rules: Docker's, as runc has them (moby/sys/user, GetExecUser). Both files are the image's, so hostile: they are read
within a bound, and lines that are not what they should be do not count.
"""

from __future__ import annotations

from dataclasses import dataclass

from woodshed.errors import UsageError
from woodshed.sandbox.images.view import View
from woodshed.sandbox.native.ids import COUNT

PASSWD, GROUP = "/etc/passwd", "/etc/group"
MOST_BYTES = 1 << 20
"""Of either file that are read."""
_MOST_GROUPS = 64


@dataclass(frozen=True, slots=True)
class Account:
    """Who a command is. ``groups`` are the supplementary ones; ``name`` is empty where the image has none for it."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    name: str = ""
    home: str = "/"

    @property
    def is_root(self) -> bool:
        """Whether it is what commands are without any USER."""
        return (self.uid, self.gid, self.groups) == (0, 0, ())


def find(user: str, passwd: str, group: str) -> Account:
    """The account that ``USER[:GROUP]`` means by the texts of both files; empty means root. Raises UsageError.

    A number is a number, whatever is called so. Without a group it is the user's own primary one (0 where the image
    does not know the number) and those that list the user; with one, that alone.
    """
    wanted, _, wanted_group = user.partition(":")
    wanted = wanted or "0"
    users, groups = _rows(passwd, 7, (2, 3)), _rows(group, 4, (2,))
    row = next((row for row in users if (int(row[2]) == _number(wanted) if wanted.isdigit() else row[0] == wanted)),
               None)
    if row is None and not wanted.isdigit():
        raise UsageError(f"the image has no user {wanted[:80]!r}",
                         remedy="Make it first (RUN useradd …), or use a number.")
    name, uid, gid, home = (row[0], int(row[2]), int(row[3]), row[5]) if row else ("", _number(wanted), 0, "/")
    if wanted_group:
        return _held(Account(uid, _group(wanted_group, groups), (), name, home or "/"))
    more = tuple(dict.fromkeys(int(row[2]) for row in groups if name and name in row[3].split(",")))
    return _held(Account(uid, gid, more[:_MOST_GROUPS], name, home or "/"))


def owner(text: str, passwd: str, group: str) -> tuple[int, int]:
    """The numbers of ``--chown=USER[:GROUP]``: a number without a group is its own group's. Raises UsageError."""
    if not text:
        return 0, 0
    found = find(text, passwd, group)
    alone = text.partition(":")
    return (found.uid, found.uid) if alone[0].isdigit() and not alone[2] else (found.uid, found.gid)


def of_layers(user: str, view: View) -> Account:
    """The account of ``user`` in the image of these layers, read from the host, no link of theirs followed out here.

    Raises UsageError.
    """
    texts = [(view.read(path, MOST_BYTES) or b"").decode(errors="replace") for path in (PASSWD, GROUP)]
    return find(user, texts[0], texts[1])


def _held(account: Account) -> Account:
    if max(account.uid, account.gid, *account.groups, 0) >= COUNT:
        raise UsageError(f"the user {account.name or account.uid} has numbers beyond {COUNT - 1}, which no sandbox has")
    return account


def _group(wanted: str, groups: list[list[str]]) -> int:
    if wanted.isdigit():
        return _number(wanted)
    for row in groups:
        if row[0] == wanted:
            return int(row[2])
    raise UsageError(f"the image has no group {wanted[:80]!r}",
                     remedy="Make it first (RUN groupadd …), or use a number.")


def _number(text: str) -> int:
    return int(text) if len(text) < 11 else COUNT  # beyond what any sandbox has


def _rows(text: str, fields: int, numbers: tuple[int, ...]) -> list[list[str]]:
    """The lines that are whole. A NUL is no part of any name."""
    rows = [line.split(":") for line in text.splitlines() if "\0" not in line]
    return [row for row in rows if len(row) >= fields
            and all(row[at].isascii() and row[at].isdigit() and len(row[at]) < 11 for at in numbers)]
