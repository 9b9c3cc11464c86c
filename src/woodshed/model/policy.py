"""SandboxPolicy: what binds a sandbox. Records only; ``sandbox/`` compiles them, ``docs/policy.md`` explains them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from woodshed.model.network import NetworkPolicy
from woodshed.model.record import Record

Access = Literal["hidden", "read", "write"]

_OWN = ("/proc", "/dev", "/sys")
"""The sandbox's own; no rule may touch them."""
_LEAST_OPEN_FILES = 64


class Limits(Record):
    """Upper bounds of one sandbox. None means no bound of ours. ``docs/limits.md`` tells how each is held."""

    memory_mb: int | None = Field(default=None, gt=0)
    cpus: float | None = Field(default=None, gt=0)
    pids: int = Field(default=1024, gt=0)
    disk_mb: int = Field(default=2048, gt=0, description="of one file, of all changes, and of what a capture keeps")
    files: int = Field(default=50_000, gt=0, description="entries among the changes, and of what a capture keeps")
    open_files: int = Field(default=16_384, gt=0, description="open descriptors of one process")
    wall_s: float | None = Field(default=None, gt=0, description="life of the sandbox; then it ends")
    output_bytes: int = Field(default=1_000_000, gt=0, description="kept of each stream of one exec")
    spool_bytes: int = Field(default=0, ge=0, description="of each longer stream, kept on the host's disk")

    def within(self, bounds: Limits) -> Limits:
        """These limits, each no wider than in ``bounds`` where that says something else than its default."""
        said = bounds.model_dump(exclude_defaults=True)
        mine = {name: getattr(self, name) for name in said}
        narrower = {name: bound for name, bound in said.items() if mine[name] is None or bound < mine[name]}
        return self.model_copy(update=narrower)

    @field_validator("open_files")
    @classmethod
    def _enough_to_start(cls, value: int) -> int:
        if value < _LEAST_OPEN_FILES:
            raise ValueError(f"the sandbox's own first process lives under it, too: at least {_LEAST_OPEN_FILES}")
        return value


class DirectoryRule(Record):
    """What may be done with ``path``, a directory or a file, and all below it. The longest path that matches decides.

    ``hidden``: it is empty. ``read``: nothing below it changes. ``write``: it may change, also inside what is read or
    hidden. Without a rule everything that the image leaves writable may be written.
    """

    path: str
    access: Access

    @field_validator("path")
    @classmethod
    def _plain(cls, path: str) -> str:
        _check_path(path)
        if beneath(path, _OWN):
            raise ValueError("/proc, /dev and /sys are the sandbox's own: no rule may touch them")
        return path

    @field_validator("access")
    @classmethod
    def _something_left(cls, access: Access, info: ValidationInfo) -> Access:
        if access == "hidden" and info.data.get("path") == "/":
            raise ValueError("'/' cannot be hidden: nothing could run")
        return access


class CommandSet(Record):
    """Which programs may be started: names, looked up in PATH, or absolute paths.

    ``allow`` is enforced: nothing else can be started. ``deny`` only hides files: a copy, or the same program under
    another name, runs. At most one of the two is given.
    """

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()

    @field_validator("allow", "deny")
    @classmethod
    def _names(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in names or ():
            if "/" in name:
                _check_path(name)
            elif not name or "\0" in name or name in (".", ".."):
                raise ValueError(f"{name!r} is no program's name")
        if names is not None and len(set(names)) != len(names):
            raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is given twice")
        return names

    @field_validator("deny")
    @classmethod
    def _one_of_them(cls, deny: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if deny and info.data.get("allow") is not None:
            raise ValueError("allow is given too: what it leaves out is denied already")
        return deny


class SandboxPolicy(Record):
    """What a sandbox may do. Contradictions are errors here, before anything runs.

    ``env`` is set, and ``env_drop`` left out, of what image and task declare; a single exec may still set its own.
    ``noexec``: what can be written cannot be executed or mapped as code, and the image's programs and libraries cannot
    be written. None: exactly where ``commands.allow`` is given. ``privileges``: of user 0; other users have none.
    ``network`` may be given as False, which is the same as no rules: none but the sandbox's own loopback. ``engine``
    names the engine that must make the sandbox; None leaves it to the command and the settings.
    """

    network: NetworkPolicy = NetworkPolicy()
    limits: Limits = Limits()
    directories: tuple[DirectoryRule, ...] = ()
    commands: CommandSet = CommandSet()
    env: dict[str, str] = {}
    env_drop: tuple[str, ...] = ()
    noexec: bool | None = None
    privileges: Literal["default", "none"] = "default"
    engine: str | None = Field(default=None, min_length=1)

    @field_validator("network", mode="before")
    @classmethod
    def _hosts(cls, network: Any) -> Any:
        if network is True:
            raise ValueError("network = true names no host: write a [[network.rules]] for each, or one for host = '*'")
        return NetworkPolicy() if network is False else network

    @field_validator("directories")
    @classmethod
    def _each_once(cls, rules: tuple[DirectoryRule, ...]) -> tuple[DirectoryRule, ...]:
        known: dict[str, Access] = {}
        for rule in rules:
            if (access := known.setdefault(rule.path, rule.access)) != rule.access:
                raise ValueError(f"{rule.path} is both {access} and {rule.access}")
        return tuple(rule for rule in rules if known.pop(rule.path, None))

    @field_validator("commands")
    @classmethod
    def _in_sight(cls, commands: CommandSet, info: ValidationInfo) -> CommandSet:
        for name in commands.allow or ():
            if name.startswith("/") and access_of(name, info.data.get("directories", ())) == "hidden":
                raise ValueError(f"{name} is allowed, but a rule of directories hides it")
        return commands

    @field_validator("env")
    @classmethod
    def _variables(cls, env: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        _check_variables(env)
        if odd := [name for name, value in env.items() if "\0" in value]:
            raise ValueError(f"the value of {odd[0]!r} holds a NUL")
        network = info.data.get("network")
        if network is not None and (both := sorted(network.secret_names & set(env))):
            raise ValueError(f"{both[0]!r} is set by a secret of network too")
        return env

    @field_validator("env_drop")
    @classmethod
    def _not_set_too(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        _check_variables(names)
        if both := [name for name in names if name in info.data.get("env", {})]:
            raise ValueError(f"{both[0]!r} is set by env too")
        return names

    @property
    def writable_is_noexec(self) -> bool:
        """``noexec`` as it holds: where it is not given, an allow set decides."""
        return self.commands.allow is not None if self.noexec is None else self.noexec


def access_of(path: str, rules: Iterable[DirectoryRule]) -> Access | None:
    """What the longest rule that matches ``path`` says; None where none does."""
    matching = [rule for rule in rules if beneath(path, (rule.path,))]
    return max(matching, key=lambda rule: len(rule.path)).access if matching else None


def beneath(path: str, parents: Iterable[str]) -> bool:
    """Whether ``path`` is one of ``parents`` or lies below it; both normalised."""
    return any(path == parent or path.startswith(parent.rstrip("/") + "/") for parent in parents)


def _check_path(path: str) -> None:
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not absolute")
    if "\0" in path or posixpath.normpath(path) != path or path.startswith("//"):
        raise ValueError(f"{path!r} is not normal: say it without '..', '.', '//' or a '/' at its end")


def _check_variables(names: Iterable[str]) -> None:
    for name in names:
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"{name!r} is no variable's name")
