"""Users' files: whatever a file that a command is given is, or holds, it is refused by its name and with a remedy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nobody import NOBODY
from woodshed.errors import UsageError
from woodshed.harness.external.known import named
from woodshed.harness.patchfile import read_changes
from woodshed.harness.replay import plan
from woodshed.services.declared import read_toml
from woodshed.services.exporting import load_list
from woodshed.services.offer import made
from woodshed.tasks.load import find_tasks
from woodshed.tasks.rows import read_items, read_rows

READERS: dict[str, Callable[[Path], Any]] = {
    "toml": lambda file: read_toml(file, "docs/policy.md"),
    "serve": lambda file: made([file.parent], file=file),
    "list": load_list,
    "replay": plan,
    "patch": read_changes,
    "external": lambda file: named(str(file)),
    "rows": lambda file: list(read_rows(file, ["a"])),
    "items": lambda file: list(read_items(file)),
    "task": lambda file: find_tasks([file.parent]),
}


def unreadable(file: Path) -> None:
    file.write_bytes(b"{}")
    file.chmod(0)


def huge(file: Path) -> None:
    file.touch()
    os.truncate(file, 210 << 20)


BAD: dict[str, Callable[[Path], object]] = {
    "missing": lambda file: None,
    "folder": lambda file: file.mkdir(),
    "unreadable": unreadable,
    "latin": lambda file: file.write_bytes(b'{"a": "\xe4"}\na = "\xe4"\n'),
    "deep": lambda file: file.write_bytes(b"a = " + b"[" * 100_000),
    "huge": huge,
}
TAKES = {("patch", "latin"), ("list", "deep"), ("task", "huge")}
"""A patch is bytes, and any text is a line of a list; of all files of a task the digest is taken first."""
CASES = [(reader, bad) for reader in READERS for bad in BAD if (reader, bad) not in TAKES]


@contextmanager
def an_ordinary_user() -> Iterator[None]:
    """Nobody, where we are root, who may read everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(("reader", "bad"), CASES)
def test_a_bad_file_is_refused_by_its_name(nobodys_folder: Path, reader: str, bad: str) -> None:
    """And with a remedy: a missing one, a folder, one that may not be read, no UTF-8, deep, of 200 MB."""
    file = nobodys_folder / "task.toml"
    BAD[bad](file)
    with an_ordinary_user(), pytest.raises(UsageError) as refused:
        READERS[reader](file)
    error = refused.value
    assert error.remedy, str(error)
    assert str(file).rpartition("/")[0] in str(error.file), str(error)
    assert "codec" not in str(error)
