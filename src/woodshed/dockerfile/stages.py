"""A Dockerfile as stages: what each starts from, and the arguments that stand before the first."""

from __future__ import annotations

import platform
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from woodshed.dockerfile import words
from woodshed.dockerfile.parse import Instruction, Source, filled, refuse
from woodshed.errors import UsageError

MAX_BYTES = 1_000_000
MAX_STAGES, MAX_INSTRUCTIONS = 200, 5000
"""Of one file: no image has that many layers, and a file may be an enemy's."""
MAX_VARIABLES = 6 << 20
"""Characters of all variables together: Linux passes no more to a program (fs/exec.c)."""
_LONGEST_PATH = 4096
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_REMEDY = "See Docker's Dockerfile reference."


def machine() -> str:
    """This machine's architecture by its name in images: amd64, arm64."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def automatic() -> dict[str, str]:
    """The arguments that every build has (BuildKit's "automatic platform ARGs")."""
    return {f"{kind}{part}": value for kind in ("TARGET", "BUILD") for part, value in (
        ("PLATFORM", f"linux/{machine()}"), ("OS", "linux"), ("ARCH", machine()), ("VARIANT", ""))}


@dataclass(frozen=True, slots=True)
class Stage:
    """One FROM and what follows it. ``base`` is an image, the name or number of an earlier stage, or ``scratch``."""

    index: int
    name: str
    base: str
    line: int
    platform: str
    steps: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A whole file. ``arguments`` are those before the first FROM, with the values they have in this build."""

    file: object
    escape: str
    arguments: Mapping[str, str]
    stages: tuple[Stage, ...]

    def target(self, name: str | None) -> Stage:
        """The stage of that name or number; the last one without. Raises UsageError."""
        if name is None:
            return self.stages[-1]
        found = self.named(name, len(self.stages))
        if found is None:
            known = ", ".join(stage.name for stage in self.stages if stage.name) or "none has a name"
            raise UsageError(f"no stage {name!r}", file=self.file, field="target", remedy=f"Known: {known}.")
        return found

    def named(self, name: str, before: int) -> Stage | None:
        """The stage ``name`` among the first ``before``, by name (the last of that name) or number."""
        for stage in reversed(self.stages[:before]):
            if stage.name == name.lower() or str(stage.index) == name:
                return stage
        return None


def read(text: str, file: object, arguments: Mapping[str, str] | None = None) -> Dockerfile:
    """The Dockerfile in ``text``; ``arguments`` are given by the one who builds. Raises UsageError naming the line."""
    if "\0" in text or len(text) > MAX_BYTES:
        raise UsageError(f"no text of at most {MAX_BYTES} characters", file=file, remedy="Is it a Dockerfile?")
    source = Source(text, file)
    known: dict[str, str] = {}
    stages: list[Stage] = []
    steps: list[Instruction] = []
    for count, instruction in enumerate(source.instructions()):
        if count >= MAX_INSTRUCTIONS or len(stages) > MAX_STAGES:
            refuse(file, instruction.line, f"more than {MAX_INSTRUCTIONS} instructions or {MAX_STAGES} stages")
        if instruction.keyword == "FROM":
            stages = _closed(stages, steps)
            steps = []
            stages.append(_stage(instruction, source, automatic() | known, len(stages)))
        elif stages:
            steps.append(instruction)
        elif instruction.keyword == "ARG":
            for name, default in argument(instruction, automatic() | known, source.file, source.escape):
                value = (arguments or {}).get(name, default)
                if value is not None:
                    known[name] = value
        else:
            refuse(file, instruction.line, f"{instruction.keyword} before the first FROM", "Only ARG may stand there.")
    if not stages:
        raise UsageError("has no FROM", file=file, remedy=_REMEDY)
    return Dockerfile(file, source.escape, automatic() | known, tuple(_closed(stages, steps)))


def _closed(stages: list[Stage], steps: list[Instruction]) -> list[Stage]:
    if not stages:
        return []
    last = stages[-1]
    return [*stages[:-1], Stage(last.index, last.name, last.base, last.line, last.platform, tuple(steps))]


def _stage(instruction: Instruction, source: Source, variables: Mapping[str, str], index: int) -> Stage:
    parts = instruction.text.split()
    if len(parts) not in (1, 3) or (len(parts) == 3 and parts[1].upper() != "AS"):
        refuse(source.file, instruction.line, f"FROM {instruction.text!r} is not FROM IMAGE [AS NAME]", _REMEDY)
    wanted = ""
    for flag, value in instruction.flags:
        if flag != "platform":
            refuse(source.file, instruction.line, f"FROM has no --{flag}", _REMEDY)
        wanted = filled(instruction, value, variables, source.file, source.escape)
    base = filled(instruction, parts[0], variables, source.file, source.escape)
    if not base:
        refuse(source.file, instruction.line, f"FROM {parts[0]} names no image",
               "Give the argument a default (ARG NAME=value before FROM) or a value (--build-arg).")
    name = parts[2].lower() if len(parts) == 3 else ""
    if name and not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        refuse(source.file, instruction.line, f"{parts[2]!r} is no name of a stage")
    return Stage(index, name, base, instruction.line, wanted, ())


def argument(
    instruction: Instruction, variables: Mapping[str, str], file: object, escape: str
) -> list[tuple[str, str | None]]:
    """The names that an ARG declares, each with its default or None."""
    found: list[tuple[str, str | None]] = []
    variables, total = dict(variables), 0
    for word in words.split(instruction.text, escape):
        name, equals, value = word.partition("=")
        if not name.replace("_", "").isalnum() or name[0].isdigit():
            refuse(file, instruction.line, f"{name!r} is no name of an argument", _REMEDY)
        found.append((name, filled(instruction, value, variables, file, escape) if equals else None))
        variables[name] = found[-1][1] or ""
        total += len(variables[name])
        if total > MAX_VARIABLES:
            refuse(file, instruction.line, f"more than {MAX_VARIABLES} characters of arguments")
    return found


def environment(step: Instruction, variables: Mapping[str, str], file: object, escape: str) -> dict[str, str]:
    """What an ENV (or LABEL) sets, variables put in. Raises UsageError naming the line."""
    found: dict[str, str] = {}
    total = sum(map(len, variables.values()))
    try:
        for name, value in words.pairs(step.text, escape):
            key = words.expand(name, variables, escape)
            found[key] = filled(step, value, variables, file, escape)
            total += len(key) + len(found[key])
            if total > MAX_VARIABLES:
                raise words.Unreadable(f"makes more than {MAX_VARIABLES} characters of variables")
    except words.Unreadable as error:
        refuse(file, step.line, f"{step.keyword} {error}")
    return found


def joined(above: str, path: str, step: Instruction, file: object) -> str:
    """Where WORKDIR ``path`` leads from ``above``, absolute. Raises UsageError."""
    whole = "/" + posixpath.normpath(posixpath.join(above, path)).lstrip("/")
    if len(whole) > _LONGEST_PATH:
        refuse(file, step.line, f"a path of more than {_LONGEST_PATH} characters")
    return whole


def workdir(dockerfile: Dockerfile) -> str | None:
    """The WORKDIR that the last stage ends with, as far as the file itself says; None where only its base knows.

    Raises UsageError.
    """
    return _workdir(dockerfile, dockerfile.stages[-1], len(dockerfile.stages))


def _workdir(dockerfile: Dockerfile, stage: Stage, before: int) -> str | None:
    base = dockerfile.named(stage.base, stage.index)
    here = _workdir(dockerfile, base, stage.index) if base is not None else None
    variables: dict[str, str] = {}
    for step in stage.steps:
        if step.keyword == "ENV":
            variables |= environment(step, variables, dockerfile.file, dockerfile.escape)
        elif step.keyword == "ARG":
            for name, default in argument(step, variables, dockerfile.file, dockerfile.escape):
                value = default if default is not None else dockerfile.arguments.get(name)
                if value is not None:
                    variables.setdefault(name, value)
        elif step.keyword == "WORKDIR":
            path = filled(step, step.text, variables, dockerfile.file, dockerfile.escape)
            if path.startswith("/") or here is not None:
                here = joined(here or "/", path, step, dockerfile.file)
    return here
