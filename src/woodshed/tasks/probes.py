"""``[woodshed.probes.NAME]``, or a step's: questions to the program under test, read and checked.

Shape in :class:`ProbeTable`.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NoReturn

from pydantic import Field

from woodshed.model import Record
from woodshed.model.probe import PREFIX, Probe

MAX_PROBES = 200
MAX_BYTES = 900_000
"""Of what a probe feeds, and of what it expects: below what is kept of a command's output by default."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}")

Fail = Callable[[str, str, str], NoReturn]
"""Raises the UsageError of a field, a message and a remedy."""
Absolute = Callable[[str, str], str]
"""The absolute path that a value (from the workdir) means, for a field. Raises UsageError for a reserved one."""


class ProbeTable(Record):
    """``[woodshed.probes.NAME]``. Paths of files of the task are relative to tests/; the others to the workdir."""

    argv: tuple[str, ...]
    stdin: str | None = None
    stdin_file: str | None = None
    inputs: dict[str, str] = {}
    stdout: str | None = None
    stdout_file: str | None = None
    match: Literal["exact", "lines", "json"] = "exact"
    files: dict[str, str] = {}
    exit_code: int | None = Field(default=None, ge=0, le=255)
    timeout_sec: float = Field(default=10.0, gt=0)


def probes(
    tables: Mapping[str, ProbeTable], field: str, tests: Path, absolute: Absolute, fail: Fail
) -> tuple[Probe, ...]:
    """The probes of ``tables``, which stand at ``field``, in order.

    Raises UsageError naming field and remedy for one that cannot be asked.
    """
    if len(tables) > MAX_PROBES:
        fail(field, f"{len(tables)} of them, and {MAX_PROBES} may be", "Ask less, or more with each.")
    return tuple(_Reader(f"{field}.{name}", name, table, tests, absolute, fail).probe()
                 for name, table in tables.items())


class _Reader:
    """One table on its way to a Probe."""

    def __init__(
        self, field: str, name: str, table: ProbeTable, tests: Path, absolute: Absolute, fail: Fail
    ) -> None:
        self.field, self.name, self.table = field, name, table
        self.tests, self.absolute, self.fail = tests, absolute, fail

    def probe(self) -> Probe:
        table = self.table
        self._check()
        return Probe(
            name=self.name,
            argv=table.argv,
            stdin=table.stdin,
            stdin_file=self._file("stdin_file", table.stdin_file),
            inputs=self._files("inputs", table.inputs),
            stdout=table.stdout,
            stdout_file=self._expected(),
            match=table.match,
            files=self._files("files", table.files),
            exit_code=table.exit_code or 0,
            timeout_s=table.timeout_sec,
        )

    def _check(self) -> None:
        table = self.table
        if not _NAME.fullmatch(self.name):
            self.fail(self.field, f"{self.name[:80]!r} is no name of a probe", "Use letters, digits, '-', '.' and '_'.")
        if not table.argv or not table.argv[0] or any("\0" in word for word in table.argv):
            self.fail(f"{self.field}.argv", "no command", 'Write a program and its arguments: ["python3", "main.py"].')
        for plain, file in (("stdin", "stdin_file"), ("stdout", "stdout_file")):
            if getattr(table, plain) is not None and getattr(table, file) is not None:
                self.fail(f"{self.field}.{file}", f"given together with {plain}", "Keep one of them.")
        if table.stdout is None and table.stdout_file is None and not table.files and table.exit_code is None:
            self.fail(self.field, "expects nothing", "Say stdout, stdout_file, files or exit_code.")
        if table.match != "exact" and table.stdout is None and table.stdout_file is None:
            self.fail(f"{self.field}.match", "there is no standard output to compare", "Add stdout, or remove match.")
        if table.stdout is not None:
            self._check_json("stdout", table.stdout.encode())

    def _expected(self) -> Path | None:
        path = self._file("stdout_file", self.table.stdout_file)
        if path is not None:
            self._check_json("stdout_file", path.read_bytes())
        return path

    def _check_json(self, key: str, content: bytes) -> None:
        if self.table.match != "json":
            return
        try:
            json.loads(content)
        except (ValueError, RecursionError) as error:
            self.fail(f"{self.field}.{key}", f"is not JSON: {error}", 'Mend it, or leave out match = "json".')

    def _files(self, key: str, table: Mapping[str, str]) -> dict[str, Path]:
        found = {}
        for place, name in table.items():
            path = self._file(f"{key}.{place}", name)
            assert path is not None
            found[self.absolute(f"{self.field}.{key}", place)] = path
        return found

    def _file(self, key: str, name: str | None) -> Path | None:
        """A regular file below tests/."""
        if name is None:
            return None
        field, top = f"{self.field}.{key}", self.tests.resolve()
        path = None if "\0" in name else (top / name).resolve()
        if path is None or not path.is_relative_to(top) or not path.is_file() or not stat.S_ISREG(path.stat().st_mode):
            self.fail(field, f"{name!r} is no file in tests/", "Name one, relative to tests/.")
        if path.stat().st_size > MAX_BYTES:
            self.fail(field, f"{name} is larger than {MAX_BYTES} bytes", "Ask for less.")
        return path


__all__ = ["PREFIX", "ProbeTable", "probes"]
