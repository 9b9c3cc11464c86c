"""What task.toml declares, made into the values of our records. Every error names the field and the remedy."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NoReturn

from packaging.requirements import InvalidRequirement, Requirement

from woodshed.errors import UsageError
from woodshed.model import Collect, EnvironmentSpec, Framework, Healthcheck, Limits, TaskStep, Upload, VerifierSpec
from woodshed.model.feedback import Remark
from woodshed.model.network import NetworkPolicy
from woodshed.model.probe import PREFIX, Probe
from woodshed.model.rules import RuleSet, rule_set
from woodshed.settings import setting
from woodshed.tasks.folder import check_history, check_part
from woodshed.tasks.image import Chosen, chosen
from woodshed.tasks.network import network
from woodshed.tasks.probes import probes
from woodshed.tasks.schema import (
    NEWEST,
    AgentTable,
    ArtifactTable,
    CollectTable,
    EnvironmentTable,
    HealthcheckTable,
    TaskFile,
)

WORKDIR = "/workspace"
MAX_LIST_BYTES = 10_000_000
_OURS = ("/tests", "/solution", "/logs", "/proc", "/sys", "/dev")
_ARTIFACTS = "/logs/artifacts"
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}|[0-9]{1,9}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([KMGT])(?:i?B)?", re.IGNORECASE)
_MEGABYTES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


class Declared:
    """One task.toml and its folder; each method is one value of the Task's records.

    ``part`` is the folder (relative) that holds tests/, ``where`` the table of the verifier: a step has its own.
    """

    def __init__(self, config: TaskFile, folder: Path, *, part: str = "", where: str = "verifier") -> None:
        self.config, self.folder, self.file = config, folder, folder / "task.toml"
        self.part, self.where = folder / part, where

    def fail(self, field: str, message: str, remedy: str) -> NoReturn:
        """Raise the UsageError that names this task's file."""
        raise UsageError(message, file=self.file, field=field, remedy=remedy)

    def check_version(self) -> None:
        """The schema version is one we know."""
        old, new = self.config.version, self.config.schema_version
        if old is not None and new is not None and old != new:
            self.fail("version", f"{old!r} and schema_version {new!r} disagree", "Keep schema_version alone.")
        field = "version" if new is None else "schema_version"
        value = new or old or "1.0"
        match = _VERSION.fullmatch(value)
        if match is None or int(match[1]) < 1:
            self.fail(field, f"{value!r} is no version of the task format", 'Write schema_version = "1.4".')
        if (int(match[1]), int(match[2])) > NEWEST:
            self.fail(field, f"{value} is newer than {NEWEST[0]}.{NEWEST[1]}, the newest this Woodshed knows",
                      "Update Woodshed, or write the task in the older format.")

    def environment(self) -> EnvironmentSpec:
        """The declared world; its uploads are the workspace alone."""
        table, ours = self.config.environment, self.config.woodshed
        workdir, workspace = self.workdir(), self.workspace()
        return EnvironmentSpec(
            image=self.chosen.image,
            workdir=workdir,
            user=self.user(self.config.agent.user),
            requirements=self.requirements(),
            uploads=() if workspace is None else (Upload(source=workspace, target=workdir),),
            env=self.variables("environment.env", table.env),
            setup_timeout_s=table.build_timeout_sec,
            healthcheck=self.healthcheck(table.healthcheck),
            limits=self.limits(table, ours.limits.model_dump(exclude_none=True)),
        )

    def healthcheck(self, table: HealthcheckTable | None) -> Healthcheck | None:
        """The check under our own names."""
        if table is None:
            return None
        return Healthcheck(
            command=table.command, interval_s=table.interval_sec, timeout_s=table.timeout_sec, retries=table.retries,
            start_period_s=table.start_period_sec, start_interval_s=table.start_interval_sec,
        )

    def network(self) -> NetworkPolicy:
        """What the agent may reach."""
        if self.config.woodshed.network == "none":
            return NetworkPolicy()
        return network(self.config.agent, self.config.environment, "agent", self.fail)

    def verifier(self) -> VerifierSpec:
        """How the end state is judged."""
        table, expected, world = self.config.verifier, self.expected_tests(), self.judged_in()
        common, offline = self.folder / "tests", self.config.woodshed.network == "none"
        within = (self.config.environment, "environment") if table.environment is None else (
            table.environment, f"{self.where}.environment")
        return VerifierSpec(
            tests=self.tests(),
            common_tests=common if self.tests() != common and common.is_dir() else None,
            environment=world,
            network=NetworkPolicy() if offline else network(table, within[0], self.where, self.fail, within=within[1]),
            user=self.user(table.user),
            collect=tuple(self._collect(index, row) for index, row in enumerate(table.collect)),
            left_out=self.left_out(),
            timeout_s=table.timeout_sec,
            env=self.variables(f"{self.where}.env", table.env),
            framework=self.framework(expected),
            expected_tests=expected,
            protected=self.protected(),
            capture=self.capture(),
            rewards=self.rewards(expected),
            probes=self.probes(),
        )

    def tests(self) -> Path:
        """The folder with the step's own tests, or the task's."""
        own = self.part / "tests"
        return own if own.is_dir() else self.folder / "tests"

    def judged_in(self) -> EnvironmentSpec | None:
        """The verifier's own world; None where it is a fresh copy of the agent's.

        Harbor's order: its own image, a Dockerfile beside the tests, else the image of the agent.
        """
        table = self.config.verifier
        if table.environment is None and table.environment_mode != "separate":
            return None
        file = self.tests() / "Dockerfile"
        if table.environment is None and not file.is_file():
            return None
        own = table.environment or self.config.environment
        if table.environment_mode == "shared":
            self.fail(f"{self.where}.environment_mode", "shared, and yet the verifier has an environment of its own",
                      'Remove one of them, or write "separate".')
        ours = self.config.woodshed.model_copy(update={"workspace": None})
        if own.docker_image is not None and table.environment is not None:
            ours = ours.model_copy(update={"image": None})
        elif file.is_file():
            ours = ours.model_copy(update={"image": f"dockerfile:{file}"})
        else:
            own = own.model_copy(update={"docker_image": self.config.environment.docker_image})
            ours = self.config.woodshed
        own = own.model_copy(update={"workdir": own.workdir or self.workdir()})
        config = self.config.model_copy(update={"environment": own, "woodshed": ours, "agent": AgentTable()})
        return _Judging(config, self.folder).environment()

    def left_out(self) -> dict[str, tuple[str, ...]]:
        """Patterns of what an artifact leaves out, by its path."""
        rows = [row for row in self.config.artifacts if isinstance(row, ArtifactTable) and row.exclude]
        return {self._absolute("artifacts", row.source, self.workdir()): row.exclude for row in rows}

    def _collect(self, index: int, row: CollectTable) -> Collect:
        if row.service != "main":
            self.fail(f"{self.where}.collect.{index}.service", f"services beside the main one ({row.service})",
                      "Woodshed cannot run this task.")
        return Collect(command=row.command, timeout_s=row.timeout_sec, user=self.user(row.user))

    @cached_property
    def chosen(self) -> Chosen:
        """The image, and what it says of the working folder."""
        return chosen(self.config, self.folder, self.fail, self._apart)

    def workdir(self) -> str:
        """Absolute and normalised; never a place that is ours or the kernel's."""
        value = self.config.environment.workdir or self.chosen.workdir or WORKDIR
        return self._absolute("environment.workdir", value)

    def user(self, value: str | int | None) -> str:
        """As whom somebody acts, a name or a number; empty where nothing is said."""
        text = "" if value is None else str(value)
        if text and not _USER.fullmatch(text):
            self.fail("user", f"{text[:80]!r} is no user", "Write a name or a number.")
        return text

    def _absolute(self, field: str, value: str, base: str | None = None) -> str:
        path = posixpath.normpath(posixpath.join(base, value) if base else value)
        path = "/" + path.lstrip("/") if path.startswith("/") else path
        if not path.startswith("/") or "\0" in path or any(ord(c) < 32 for c in path):
            self.fail(field, f"{value!r} is no absolute path", f'Write it from the root, e.g. "{WORKDIR}".')
        inside = PurePosixPath(path).is_relative_to
        if path == "/" or (any(map(inside, _OURS)) and not inside(_ARTIFACTS)):
            self.fail(field, f"{value!r} is reserved", f'Choose a folder of its own, e.g. "{WORKDIR}".')
        return path

    def workspace(self) -> Path | None:
        """The folder whose files stand in the workdir at the start; None when the task has none."""
        value = self.config.woodshed.workspace
        name = "environment/workspace" if value is None else value
        if value is None and self.chosen.brings:
            return None
        if value is None and not (self.folder / name).is_symlink() and not (self.folder / name).exists():
            return None
        real = self._own(name)
        if real is None or not real.is_dir():
            self.fail("woodshed.workspace", f"{name!r} is no folder of this task",
                      "Name a folder below the task's own, e.g. environment/workspace.")
        self._apart("woodshed.workspace", real)
        check_part(real, "the workspace")
        check_history(real)
        return real

    def _own(self, name: str) -> Path | None:
        """What ``name`` leads to, resolved; None when that is not in the task's folder."""
        real = None if "\0" in name else (self.folder / name).resolve()
        return real if real is not None and real.is_relative_to(self.folder) else None

    def _apart(self, field: str, path: Path) -> None:
        """What an attempt sees neither holds nor lies in what it must not see."""
        for hidden in (*(self.folder / name for name in ("tests", "solution", "steps", "calibration.json")), self.file):
            real = hidden.resolve()
            if real.is_relative_to(path) or path.is_relative_to(real):
                self.fail(field, f"the attempt would see {hidden.name}", "Name a folder apart from it.")

    def requirements(self) -> tuple[str, ...]:
        """pip requirement strings: no options, links or paths."""
        for value in self.config.woodshed.requirements:
            if not plain_requirement(value):
                self.fail("woodshed.requirements", f"{value!r} is no plain pip requirement",
                          'Write a name with versions, e.g. "requests>=2.31"; options, links and paths are refused.')
        return tuple(value.strip() for value in self.config.woodshed.requirements)

    def variables(self, field: str, env: Mapping[str, str]) -> dict[str, str]:
        """Names and values for a sandbox. ``${VAR}`` stays, to be filled in when a sandbox opens, where the operator
        lends that variable (setting ``task_env``); else ``${VAR:-default}`` gives the default.
        """
        return {name: self._value(f"{field}.{name}", name, value) for name, value in env.items()}

    def _value(self, field: str, name: str, value: str) -> str:
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            self.fail(field, "no valid environment variable", "Use letters, digits and _ in the name.")
        match = _TEMPLATE.fullmatch(value)
        if match is not None and match[1] in _lent_names():
            if match[1] in os.environ:
                return f"${{{match[1]}}}"
            if match[2] is None:
                self.fail(field, f"the variable {match[1]} is not set here", "Set it, or write ${NAME:-default}.")
        if match is not None and match[2] is not None:
            value = match[2]
        if "${" in value:
            self.fail(field, f"{value!r} would take a value from the host",
                      "Lend the variable to tasks, WOODSHED_TASK_ENV=NAME, or write a default: ${NAME:-default}.")
        return value

    def limits(self, table: EnvironmentTable, ours: Mapping[str, float]) -> Limits:
        """Harbor's advice under our own names; ``[woodshed.limits]`` wins."""
        advice = {
            "cpus": table.cpus,
            "memory_mb": self._megabytes("memory", table.memory, table.memory_mb),
            "disk_mb": self._megabytes("storage", table.storage, table.storage_mb),
        }
        chosen = {name: value for name, value in advice.items() if value is not None} | dict(ours)
        return Limits.model_validate(chosen)

    def _megabytes(self, name: str, text: str | None, number: int | None) -> int | None:
        if text is None:
            return number
        if number is not None:
            self.fail(f"environment.{name}", f"given together with {name}_mb", f"Keep {name}_mb alone.")
        match = _SIZE.fullmatch(text.strip())
        mb = 0 if match is None else int(float(match[1]) * _MEGABYTES[match[2].upper()])
        if mb < 1:
            self.fail(f"environment.{name}", f"{text!r} is no size", f"Write {name}_mb = a number of megabytes.")
        return mb

    def expected_tests(self) -> tuple[str, ...]:
        """The report ids a reward needs, from the list or from the file it names."""
        value, field = self.config.woodshed.expected_tests, "woodshed.expected_tests"
        ids = self._listed(value) if isinstance(value, str) else value
        if isinstance(value, str) and not ids:
            self.fail(field, f"{value} lists no test", "Write one id a line.")
        for index, test in enumerate(ids):
            if not test.strip() or "\n" in test:
                self.fail(field, f"entry {index + 1} is no test id: {test!r}", "Write classname::name.")
        if len(set(ids)) != len(ids):
            twice = next(test for test in ids if ids.count(test) > 1)
            self.fail(field, f"{twice!r} is listed twice", "Keep one.")
        return ids

    def _listed(self, name: str) -> tuple[str, ...]:
        field = "woodshed.expected_tests"
        path = self._own(name)
        if path is None or not path.is_file():
            self.fail(field, f"{name!r} is no file of this task", "Name a text file with an id a line, or give a list.")
        if path.stat().st_size > MAX_LIST_BYTES:
            self.fail(field, f"{name} is larger than {MAX_LIST_BYTES} bytes", "List fewer tests.")
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(field, f"{name} is not UTF-8 (byte {error.start})", "Save it as UTF-8.")
        return tuple(line for raw in text.split("\n") if (line := raw.rstrip("\r")))

    def framework(self, expected: Sequence[str]) -> Framework | None:
        """What is written, else what the names of the hidden tests say; needed only where tests are expected."""
        if self.config.woodshed.framework is not None or not expected:
            return self.config.woodshed.framework
        names = [path.name for path in self.tests().rglob("*")]
        found = {framework for framework, fits in _FITS.items() if any(fits.search(name) for name in names)}
        if len(found) != 1:
            seen = " and ".join(sorted(found)) or "none"
            self.fail("woodshed.framework", f"required with expected_tests; the files of tests/ suggest {seen}",
                      "Write pytest, script or node.")
        return found.pop()

    def protected(self) -> tuple[str, ...]:
        """Glob patterns relative to the workdir."""
        for value in self.config.woodshed.protected:
            if not value.strip() or value.startswith("/") or ".." in value.split("/") or "\0" in value:
                self.fail("woodshed.protected", f"{value!r} is no pattern below the workdir",
                          'Write it relative to the workdir, e.g. "config/*.toml".')
        return self.config.woodshed.protected

    def capture(self) -> tuple[str, ...]:
        """The workdir, the artifacts and what ``[woodshed] capture`` adds; each once."""
        workdir = self.workdir()
        paths = [workdir] if self.judged_in() is None else [_ARTIFACTS]
        if self.config.verifier.collect:
            paths.append(_ARTIFACTS)
        for index, artifact in enumerate(self.config.artifacts):
            source = artifact.source if isinstance(artifact, ArtifactTable) else artifact
            paths.append(self._absolute(f"artifacts.{index}", source, workdir))
        paths += [self._absolute("woodshed.capture", value) for value in self.config.woodshed.capture]
        return tuple(dict.fromkeys(paths))

    def rewards(self, expected: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Named rewards over expected tests."""
        known = frozenset(expected) | {PREFIX + name for name in self.config.woodshed.probes}
        for name, ids in self.config.woodshed.rewards.items():
            field = f"woodshed.rewards.{name}"
            if not name.strip() or not ids:
                self.fail(field, "a reward needs a name and at least one test", "List the tests it needs.")
            for test in ids:
                if test not in known:
                    self.fail(field, f"{test!r} is not among expected_tests", "Add it there, or remove it here.")
        return self.config.woodshed.rewards

    def probes(self) -> tuple[Probe, ...]:
        """What the program is asked apart from its tests."""
        tables, workdir = self.config.woodshed.probes, self.workdir()
        where = "woodshed.probes" if self.part == self.folder else f"woodshed.steps.{self.part.name}.probes"
        return probes(tables, where, self.tests(), lambda field, value: self._absolute(field, value, workdir),
                      self.fail)

    def rules(self, steps: Sequence[TaskStep]) -> RuleSet | None:
        """Reward rules over what this task has, or each of its steps."""
        ours, field = self.config.woodshed, "woodshed.rules"
        if not ours.rules:
            return None
        rules = rule_set(ours.rules, file=self.file, field=field)
        declared = [(one.verifier.expected_tests, one.verifier.rewards, f" of step {one.name}") for one in steps]
        for expected, rewards, whose in declared or [(self.expected_tests(), ours.rewards, "")]:
            if (misfit := rules.misfit(expected, rewards)) is not None:
                self.fail(f"{field}.{misfit[0]}", f"{misfit[1]}{whose}", "Name what this task declares.")
        return rules

    def feedback(self, steps: Sequence[TaskStep]) -> tuple[Remark, ...]:
        """What the task's simulated person says."""
        names = [step.name for step in steps]
        for number, remark in enumerate(self.config.woodshed.feedback):
            if remark.step is not None and remark.step not in names:
                self.fail(f"woodshed.feedback.{number}.step", f"there is no step {remark.step!r}",
                          f"Known: {', '.join(names)}." if names else "Remove it: the task has no steps.")
        return self.config.woodshed.feedback


class _Judging(Declared):
    """The verifier's own world, which may see the tests."""

    def _apart(self, field: str, path: Path) -> None:
        return


def _lent_names() -> frozenset[str]:
    return frozenset(name.strip() for name in setting("task_env").split(",") if name.strip())


def plain_requirement(text: str) -> bool:
    """True for a name with extras, versions and a marker (PEP 508): no option, URL, path or second line."""
    if len(text) > 500 or "\n" in text or "\r" in text:
        return False
    try:
        return Requirement(text).url is None
    except InvalidRequirement:
        return False


_FITS = {
    Framework.SCRIPT: re.compile(r"^(run_checks|check_.*)\.py$"),
    Framework.NODE: re.compile(r"\.test\.[cm]?[jt]s$"),
    Framework.PYTEST: re.compile(r"^(test_.*|.*_test)\.py$"),
}
