"""A policy's directories and programs, made of mounts once the root stands and before any right to mount is given up.

A rule's place becomes a mount of its own, so nothing inside can rename or remove it, nor the directories above it that
are writable ("pins"): what is protected by a path stays at that path.
"""
# ruff: noqa: PTH101, PTH102, PTH110, PTH112, PTH114, PTH119, PTH120, PTH123, PTH208
# (This process stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import os
from typing import Any

from woodshed.sandbox.native.inside import confine, files, programs, syscalls
from woodshed.sandbox.native.inside.landlock import EXECUTE, REFER, WRITING, Ruleset
from woodshed.sandbox.native.inside.programs import Unenforceable
from woodshed.sandbox.native.inside.syscalls import ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, ATTR_RDONLY

_OWN = ("/proc", "/dev", "/sys")
_MEMORY = ("/tmp", "/run")  # noqa: S108 (the box's)
_STAGE = "/dev/shm"  # noqa: S108 (the box's; no rule reaches below /dev)
_CODE = ("bin", "sbin", "usr", "opt")
"""Directories of a root that hold programs, besides those called lib…"""
_CLOSED = ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV

Places = dict[str, str]
"""Access by path, links resolved, parents first."""


class Enforced:
    """What a policy comes to in a box: its mounts at once, and the rest by :meth:`seal`, when the box is confined."""

    def __init__(self, rules: dict[str, Any], workdir: str) -> None:
        """Mounts. Raises Unenforceable where this image cannot be held to the policy."""
        self.notes: list[str] = []
        self._ruleset: Ruleset | None = None
        self._noexec: bool = rules["noexec"]
        self._sealed: bool = rules["sealed"]
        self._unprivileged: bool = rules["unprivileged"]
        self.holds_root = bool(rules["directories"] or rules["deny"] or self._noexec or rules["allow"] is not None)
        """Whether mounts are of the root as it is now: another cannot take its place."""
        if not os.path.isdir(workdir):
            files.make_parents(workdir + "/")  # later it may lie in what is read-only
        places = _places(rules["directories"])
        self._guarded = places.get("/") == "read"
        if self._noexec:
            places = _parted(places, workdir)
        hidden_files = [path for path, access in places.items() if access == "hidden" and not os.path.isdir(path)]
        self._mount(places)
        syscalls.mount("tmpfs", _STAGE, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755,size=70m")
        self._empty = _file("empty", b"", 0)
        for place in hidden_files:
            self._hide(place)
        self._deny(rules["deny"], rules["path"])
        allowed = self._allow(rules["allow"], rules["path"]) if rules["allow"] is not None else None
        syscalls.unmount(_STAGE)
        if self._sealed:
            _change("/proc", ATTR_RDONLY)  # a process's own memory can be written there, code included
        self._restrict(places, allowed)

    def seal(self) -> None:
        """For this process and all it will start, for good. Needs no_new_privs."""
        if self._unprivileged:
            confine.deprive_root()
        if self._ruleset is not None:
            self._ruleset.restrict()
        if self._sealed:
            syscalls.load_filter(confine.sealing_program(syscalls.MACHINE))

    # -- directories ---------------------------------------------------------------------------------------------------

    def _mount(self, places: Places) -> None:
        pins = _pins(places)
        wanted = dict(sorted((places | pins).items()))
        # Before the first of them covers anything.
        clones = {path: self._clone(path, access) for path, access in wanted.items()
                  if access != "hidden" and path != "/"}
        self._close_root(places)
        hidden = []
        for path, access in wanted.items():
            if access == "hidden" and os.path.isdir(path):
                syscalls.mount("tmpfs", path, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=555,size=1m")
                hidden.append(path)
            elif path in clones:
                fd = clones[path]
                if not os.path.lexists(path):  # below a hidden one
                    _mount_point(path, fd)
                syscalls.attach(fd, path)
                os.close(fd)
        for path in hidden:
            _change(path, _CLOSED | ATTR_NOEXEC)

    def _clone(self, path: str, access: str) -> int:
        fd = syscalls.tree(path, recursive=True)
        closed = os.fstatvfs(fd).f_flag & os.ST_RDONLY
        if access == "read":
            syscalls.set_attributes(fd, ATTR_RDONLY, recursive=True)
        elif access == "write" and closed:
            raise Unenforceable(f"directories: {path!r} is to be written, but this image is read-only there")
        elif self._noexec and not closed:
            syscalls.set_attributes(fd, ATTR_NOEXEC)
        return fd

    def _close_root(self, places: Places) -> None:
        more = (ATTR_NOEXEC if self._noexec else 0) | (ATTR_RDONLY if places.get("/") == "read" else 0)
        if more:
            for path in ("/", *(path for path in _MEMORY if os.path.ismount(path))):
                _change(path, more)
        if self._noexec:
            _change(_STAGE, ATTR_NOEXEC)

    def _hide(self, path: str) -> None:
        fd = syscalls.tree(self._empty)
        syscalls.set_attributes(fd, _CLOSED | ATTR_NOEXEC)
        syscalls.attach(fd, path)
        os.close(fd)

    # -- programs ------------------------------------------------------------------------------------------------------

    def _deny(self, names: list[str], search: str) -> None:
        for name in names:
            for path in programs.named(name, search):
                if os.path.basename(path) in programs.MANY and os.path.basename(name) not in programs.MANY:
                    raise Unenforceable(f"commands.deny: {name!r} is {path!r}, many commands in one file")
                self._hide(path)

    def _allow(self, names: list[str], search: str) -> programs.Allowed:
        allowed = programs.Allowed(names, search)
        self.notes += allowed.notes
        for path in allowed.files:
            if not os.statvfs(path).f_flag & os.ST_RDONLY:
                # Or its content could be replaced; and where its directory is not to be executed, it still is.
                fd = syscalls.tree(path)
                syscalls.set_attributes(fd, _CLOSED, clear=ATTR_NOEXEC)
                syscalls.attach(fd, path)
                os.close(fd)
        for number, path in enumerate(sorted(allowed.loaders)):
            fd = syscalls.tree(_file(f"loader{number}", programs.guarded(path), 0o555))
            syscalls.set_attributes(fd, _CLOSED)
            syscalls.attach(fd, path)
            os.close(fd)
        return allowed

    # -- Landlock ------------------------------------------------------------------------------------------------------

    def _restrict(self, places: Places, allowed: programs.Allowed | None) -> None:
        """A root that is read-only but for some places can be said to Landlock as well; other rules take away within
        what they give, which it does not know. Their mounts hold alone.
        """
        guarded = self._guarded and syscalls.landlock_abi() > 0
        if allowed is None and not guarded:
            return
        self._ruleset = Ruleset((EXECUTE if allowed is not None else 0) | (WRITING if guarded else 0))
        self._ruleset.grant(REFER, ["/"])
        if allowed is not None:
            self._ruleset.grant(EXECUTE, [*allowed.files, *allowed.loaders])
        if guarded:
            self._ruleset.grant(WRITING, ["/dev", "/proc", *(path for path in places if places[path] == "write")])


def _places(rules: list[list[str]]) -> Places:
    """The rules of what is there, by resolved path."""
    found: Places = {}
    for path, access in sorted(rules, key=lambda rule: rule[1] != "write"):  # those make what is missing
        real = os.path.realpath(path)
        if real in _OWN or real.startswith(tuple(f"{own}/" for own in _OWN)):
            raise Unenforceable(f"directories: {path!r} leads to {real!r}, the sandbox's own")
        if access == "hidden" and real == "/":
            raise Unenforceable(f"directories: {path!r} leads to '/', which cannot be hidden")
        if not os.path.exists(real):  # nor is a link that leads round in circles anything
            if access == "hidden":
                continue
            if access == "read":
                raise Unenforceable(f"directories: {path!r} is to be read, but is not in this image")
            files.make_parents(real + "/")
        if found.setdefault(real, access) != access:
            raise Unenforceable(f"directories: {path!r} leads to {real!r}, which another rule makes {found[real]}")
    # What is hidden below something hidden is hidden already.
    return {path: access for path, access in found.items()
            if access != "hidden" or path == "/" or found.get(_longest(os.path.dirname(path), found)) != "hidden"}


def _parted(places: Places, workdir: str) -> Places:
    """``places``, and nothing both writable and executable: where programs lie becomes read-only.

    A working directory among them stays writable, unless a rule speaks of it.
    """
    code = {f"/{name}": "read" for name in os.listdir("/") if name in _CODE or name.startswith("lib")}
    code = {path: access for path, access in code.items() if os.path.isdir(path) and not os.path.islink(path)}
    real = os.path.realpath(workdir)
    own = {real: "write"} if _longest(real, code) and not _longest(real, places) else {}
    return code | own | places


def _longest(path: str, places: Places) -> str:
    """The place that decides about ``path``; empty where none does."""
    return max((place for place in places if place == "/" or f"{path}/".startswith(f"{place}/")), key=len, default="")


def _pins(places: Places) -> Places:
    """Writable directories above the places: renamed, they would take what is protected along and leave room."""
    pins: Places = {}
    for place in places:
        parent = os.path.dirname(place)
        while parent != "/":
            decided = places.get(_longest(parent, places), "write")
            if parent not in places and decided == "write" and not os.statvfs(parent).f_flag & os.ST_RDONLY:
                pins[parent] = "pin"
            parent = os.path.dirname(parent)
    return pins


def _mount_point(path: str, fd: int) -> None:
    files.make_parents(path)
    if os.path.isdir(f"/proc/self/fd/{fd}"):
        os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _change(path: str, attributes: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        syscalls.set_attributes(fd, attributes)
    finally:
        os.close(fd)


def _file(name: str, content: bytes, mode: int) -> str:
    path = f"{_STAGE}/{name}"
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)
    return path
