"""Which image a task's sandboxes have, and the working folder that goes with it. Nothing is built or fetched here.

``[woodshed] image`` first, then Harbor's ``docker_image``, then ``environment/Dockerfile``, else ``host``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from woodshed import dockerfile
from woodshed.errors import UsageError
from woodshed.tasks.folder import check_history, check_part
from woodshed.tasks.schema import TaskFile

Fail = Callable[[str, str, str], NoReturn]
"""Raises the UsageError that names the task's file: field, message, remedy."""
Apart = Callable[[str, Path], None]
"""Checks that what an attempt sees at a path holds none of the task's answers."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9./:@_\[\]-]{0,400}")
_FILES = ("oci", "archive")
_NO_WORKDIR = "Write workdir under [environment], as in workdir = \"/app\"."


@dataclass(frozen=True, slots=True)
class Chosen:
    """``image`` as an EnvironmentSpec has it. ``workdir`` is the image's own, empty where it does not say.

    ``brings``: the image brings the start of the work along, so that no workspace is uploaded unless one is named.
    """

    image: str
    workdir: str = ""
    brings: bool = False


def chosen(config: TaskFile, folder: Path, fail: Fail, apart: Apart) -> Chosen:
    """The image of the task in ``folder``. Raises UsageError."""
    value, file = config.woodshed.image, folder / "environment" / "Dockerfile"
    if value is not None:
        return _ours(value, folder, fail, apart)
    if (name := config.environment.docker_image) is not None:
        if not _NAME.fullmatch(name):
            fail("environment.docker_image", f"{name!r} is no name of an image", "Write it as in python:3.12-slim.")
        # Harbor's tasks name the image that was built of the Dockerfile beside: its WORKDIR is the image's.
        workdir = _workdir_of(file) if file.is_file() and config.environment.workdir is None else ""
        if config.environment.workdir is None and not workdir:
            fail("environment.workdir", "only the image knows its working folder, and it is not looked into here",
                 _NO_WORKDIR)
        return Chosen(f"docker://{name}", workdir, brings=True)
    if not file.exists():
        return Chosen("host")
    return _dockerfile(file, "environment/Dockerfile", apart, config.environment.workdir is not None, fail)


def _ours(value: str, folder: Path, fail: Fail, apart: Apart) -> Chosen:
    kind, colon, rest = value.partition(":")
    if value == "host":
        return Chosen("host")
    if "\0" in value or (colon and not rest):
        fail("woodshed.image", f"{value!r} is no image this version knows", 'Write "host" or "dir:PATH".')
    if kind == "dir":
        path = (folder / rest).resolve()
        if not path.is_dir():
            fail("woodshed.image", f"no such folder: {path}", "Unpack the root directory there first.")
        apart("woodshed.image", path)
        return Chosen(f"dir:{path}")
    if kind in _FILES and colon:
        return Chosen(_file(kind, rest, folder, fail, apart))
    if kind == "dockerfile" and colon:
        path = (folder / rest).resolve()
        file = path / "Dockerfile" if path.is_dir() else path
        if not file.is_file():
            fail("woodshed.image", f"no such Dockerfile: {file}", "Check the path; it is relative to the task.")
        return _dockerfile(file, "woodshed.image", apart, True, fail)
    if not _NAME.fullmatch(value.removeprefix("docker://")):
        fail("woodshed.image", f"{value!r} is no image this version knows",
             'Write "host", "dir:PATH", "oci:PATH", "archive:PATH", "dockerfile:PATH" or a name as "python:3.12".')
    return Chosen(value if value.startswith("docker://") else f"docker://{value}")


def _file(kind: str, rest: str, folder: Path, fail: Fail, apart: Apart) -> str:
    """An image in a file or folder, made absolute; behind a colon may be a tag."""
    parts = rest.split(":")
    count = next((count for count in range(len(parts), 0, -1) if (folder / ":".join(parts[:count])).exists()), 0)
    if not count:
        fail("woodshed.image", f"no such file or folder: {folder / rest}",
             "Check the path; it is relative to the task.")
    real, tag = (folder / ":".join(parts[:count])).resolve(), ":".join(parts[count:])
    apart("woodshed.image", real)
    return f"{kind}:{real}:{tag}" if tag else f"{kind}:{real}"


def _workdir_of(file: Path) -> str:
    """The last WORKDIR of a Dockerfile that is not built; empty where it tells none."""
    try:
        return dockerfile.workdir(dockerfile.read(file.read_bytes().decode(), file)) or ""
    except (UsageError, UnicodeDecodeError):
        return ""


def _dockerfile(file: Path, field: str, apart: Apart, has_workdir: bool, fail: Fail) -> Chosen:
    """The Dockerfile is read as a whole, so that its mistakes are told when the task is loaded."""
    context = file.parent.resolve()
    apart(field, context)
    check_part(context, "the Dockerfile's context")
    check_history(context)
    try:
        parsed = dockerfile.read(file.read_bytes().decode(), file)
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8 (byte {error.start})", file=file, remedy="Save it as UTF-8.") from None
    workdir = dockerfile.workdir(parsed)
    if workdir is None and not has_workdir:
        fail("environment.workdir", f"{file.name} names no WORKDIR, so nobody knows where the work is to be judged",
             _NO_WORKDIR)
    return Chosen(f"dockerfile:{file.resolve()}", workdir or "", brings=True)
