"""The files of a box as they were at the start, and what differs: kept in PID 1, looked at by its helpers.

The listing is taken before anything else runs, of the one file system that ``/`` is; what the runtime mounts over it
(/proc, /dev, /tmp, what is read-only) is no part of it. A file that was written has another change time (ctime), which
no program can set; so nothing is read to find what changed.
"""
# ruff: noqa: PTH108, PTH115, PTH123, PTH208
# (This process stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import stat
from collections.abc import Callable, Iterator

from woodshed.sandbox.native.inside import syscalls, wire

_ENTRIES = 2_000_000
_BLOCK = 512
_TRIED = 1 << 16
_NO_LINKS = syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Seen = tuple[int, int, int, int]
"""Mode with its kind, size, change time in ns, and bytes on disk."""
Work = Callable[[wire.Message, list[int]], None]


class State:
    """The start, and the helpers that compare with it. ``works`` are helpers, ``operations`` PID 1's own."""

    def __init__(self, channel: socket.socket, workdir: str) -> None:
        self.channel, self.workdir = channel, workdir
        self.apparent = False
        """Whether the kernel (gVisor's) does not tell what a file takes of the disk: then its size counts."""
        self.start: dict[bytes, Seen] = {}
        self.mounts: set[bytes] = set()
        self.works: dict[str, Work] = {"differ": self._differ, "restore": _restore}
        self.operations: dict[str, wire.Operation] = {"begin": self._begin, "measure": self._measure}

    def _begin(self, message: wire.Message, fds: list[int]) -> None:
        """Take the listing: what is there now is the start."""
        self.mounts = _mounts()
        self.apparent = not _tells_blocks(self.workdir)
        self.start = dict(walk(self.mounts))
        wire.reply(self.channel, message, {"entries": len(self.start)})

    def _changed(self) -> Iterator[tuple[bytes, Seen]]:
        start = self.start
        for path, seen in walk(self.mounts):
            before = start.get(path)
            if before is None or before[0] != seen[0] or (
                    not stat.S_ISDIR(seen[0]) and (before[1], before[2]) != (seen[1], seen[2])):
                yield path, seen

    def _measure(self, message: wire.Message, fds: list[int]) -> None:
        """Bytes and entries that differ, processes, and what they used.

        PID 1 looks itself: a helper could be killed by others, or not started where all processes are taken.
        """
        used = entries = 0
        for _, seen in self._changed():
            used += seen[1] if self.apparent and stat.S_ISREG(seen[0]) else seen[3]
            entries += 1
        wire.reply(self.channel, message, {"bytes": used, "files": entries, **_processes()})

    def _differ(self, message: wire.Message, fds: list[int]) -> None:
        """Write what differs, a line each: deleted paths, then what is there, parents first. Then an ``end``."""
        found = dict(walk(self.mounts))
        children: dict[bytes, list[int]] = {}
        with os.fdopen(os.dup(fds[0]), "wb", 1 << 18) as out:
            def say(*words: object) -> None:
                out.write(json.dumps(words, separators=(",", ":")).encode() + b"\n")

            for path in self.start:  # of each directory: how many entries it had, and how many of them are left
                counts = children.setdefault(path.rpartition(b"/")[0] or b"/", [0, 0])
                counts[0] += 1
                counts[1] += path in found
            for path in sorted(self.start):
                above = path.rpartition(b"/")[0] or b"/"
                stays = above == b"/" or (above in found and stat.S_ISDIR(found[above][0]))
                if path not in found and stays and (above == b"/" or children[above][1]):
                    say("deleted", os.fsdecode(path))
            for path, seen in sorted(found.items()):
                if stat.S_ISDIR(seen[0]):
                    self._directory(path, seen, children, say)
                elif (old := self.start.get(path)) is None or old[:3] != seen[:3]:
                    target = ""
                    if stat.S_ISLNK(seen[0]):
                        target = os.fsdecode(os.readlink(path))
                    say("entry", os.fsdecode(path), seen[0], seen[1], target)
            say("end")

    def _directory(
        self, path: bytes, seen: Seen, children: dict[bytes, list[int]], say: Callable[..., None]
    ) -> None:
        before = self.start.get(path)
        had, left = children.get(path, (0, 0))
        if before is None or not stat.S_ISDIR(before[0]):
            say("entry", os.fsdecode(path), seen[0], 0, "")
        elif had and not left:
            say("opaque", os.fsdecode(path), seen[0])
        elif before[0] != seen[0]:
            say("entry", os.fsdecode(path), seen[0], 0, "")


def _mounts() -> set[bytes]:
    """Where something is mounted, but for the root: proc(5), mountinfo."""
    found = set()
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            place = line.split()[4]
            for code, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
                place = place.replace(code, byte)
            found.add(place)
    return {*found, b"/proc", b"/sys", b"/dev", b"/.woodshed"} - {b"/"}


def walk(mounts: set[bytes]) -> Iterator[tuple[bytes, Seen]]:
    """Everything below ``/`` that no mount covers; no link is followed. Raises OSError (EFBIG)."""
    todo, left = [b"/"], _ENTRIES
    while todo:
        above = todo.pop()
        try:
            directory = syscalls.open_resolved(syscalls.AT_FDCWD, os.fsdecode(above), _DIRECTORY, 0, _NO_LINKS)
        except OSError:
            continue  # it went, or became something else, while we looked
        try:
            prefix = above if above == b"/" else above + b"/"
            with os.scandir(directory) as entries:
                for entry in entries:
                    path = prefix + os.fsencode(entry.name)
                    if path in mounts:
                        continue
                    try:
                        info = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if (left := left - 1) < 0:
                        raise OSError(errno.EFBIG, f"more than {_ENTRIES} entries")
                    mode = info.st_mode
                    yield path, (mode, info.st_size, info.st_ctime_ns, info.st_blocks * _BLOCK)
                    if stat.S_ISDIR(mode):
                        todo.append(path)
        finally:
            os.close(directory)


def _tells_blocks(folder: str) -> bool:
    path = f"{folder}/.woodshed-{os.urandom(6).hex()}"
    try:
        fd = os.open(path, _NEW, 0o600)
    except OSError:
        return True  # nothing can be written there; elsewhere every Linux tells
    try:
        os.unlink(path)
        written = os.write(fd, bytes(_TRIED))
        return os.fstat(fd).st_blocks * _BLOCK >= written
    finally:
        os.close(fd)


def _processes() -> dict[str, float]:
    """Live processes but PID 1 and ourselves, and what they used: ticks of CPU and resident pages, proc(5)."""
    count, ticks, pages = 0, 0, 0
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (1, os.getpid()):
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            count, ticks, pages = count + 1, ticks + int(fields[11]) + int(fields[12]), pages + int(fields[21])
    return {"processes": count, "cpu_s": ticks / os.sysconf("SC_CLK_TCK"),
            "memory": pages * resource.getpagesize()}


# -- restoring ---------------------------------------------------------------------------------------------------------


def _restore(message: wire.Message, fds: list[int]) -> None:
    """Put captured changes in place: lines of the first of ``fds``, each a list; after a file's come its bytes.

    No link is followed: what has no place of its own is left out.
    """
    modes: list[tuple[str, int]] = []
    with os.fdopen(os.dup(fds[0]), "rb", 1 << 18) as stream:
        for line in stream:
            kind, path, mode, size, target = json.loads(line)
            if kind == "end":
                break
            left = [size]

            def read(most: int, left: list[int] = left) -> bytes:
                data = stream.read(min(most, left[0])) if left[0] else b""
                left[0] -= len(data)
                return data

            try:
                _place(kind, path, mode, target, read, modes)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.EEXIST, errno.EROFS,
                                       errno.EISDIR, errno.EBUSY):
                    raise
            while read(1 << 18):
                pass
        else:
            raise OSError(errno.EIO, "the changes were cut off")
    for path, mode in reversed(modes):
        try:
            fd = syscalls.open_resolved(syscalls.AT_FDCWD, path, _DIRECTORY, 0, _NO_LINKS)
        except OSError:
            continue
        try:
            os.fchmod(fd, mode)
        finally:
            os.close(fd)


def _place(
    kind: str, path: str, mode: int, target: str, read: Callable[[int], bytes], modes: list[tuple[str, int]]
) -> None:
    above, _, name = path.rpartition("/")
    parent = _parents(above or "/", make=kind != "deleted")
    try:
        standing = _standing(name, parent)
        directory = standing is not None and stat.S_ISDIR(standing)
        if kind == "directory":
            if standing is not None and not directory:
                os.unlink(name, dir_fd=parent)
            if not directory:
                os.mkdir(name, 0o700, dir_fd=parent)
            modes.append((path, mode))
            return
        if standing is not None:
            if directory:
                _remove(name, parent)
            else:
                os.unlink(name, dir_fd=parent)
        if kind == "opaque":
            os.mkdir(name, 0o700, dir_fd=parent)
            modes.append((path, mode))
        elif kind == "symlink":
            os.symlink(target, name, dir_fd=parent)
        elif kind == "file":
            fd = os.open(name, _NEW, 0o600, dir_fd=parent)
            with os.fdopen(fd, "wb", 0) as file:
                while data := read(1 << 18):
                    file.write(data)
                os.fchmod(file.fileno(), mode)
    finally:
        os.close(parent)


def _parents(path: str, *, make: bool) -> int:
    try:
        return syscalls.open_resolved(syscalls.AT_FDCWD, path, _DIRECTORY, 0, _NO_LINKS)
    except FileNotFoundError:
        if not make:
            raise
    above, _, name = path.rpartition("/")
    parent = _parents(above or "/", make=True)
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    finally:
        os.close(parent)
    return syscalls.open_resolved(syscalls.AT_FDCWD, path, _DIRECTORY, 0, _NO_LINKS)


def _standing(name: str, parent: int) -> int | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _remove(name: str, parent: int) -> None:
    """The directory ``name`` with all below it."""
    directory = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        for entry in os.listdir(directory):
            if stat.S_ISDIR(os.stat(entry, dir_fd=directory, follow_symlinks=False).st_mode):
                _remove(entry, directory)
            else:
                os.unlink(entry, dir_fd=directory)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=parent)
