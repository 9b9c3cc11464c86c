"""Events of a directory and all below it, by inotify, from a helper inside: bounded whatever happens there.

The kernel's queue is the only one: it holds 16,384 events, and tells when more came (inotify(7)). The helper looks into
it a few dozen times a second, takes what fits a buffer, and takes nothing while the engine does not read. So a flood
costs the box time, and the engine a message that events were lost.

A line out is ``[PATH, KIND]`` in JSON; the first is ``["", "armed"]``.
"""
# ruff: noqa: PTH116, PTH118
# (This process stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import stat
import struct
import time

_libc = ctypes.CDLL(None, use_errno=True)
# include/uapi/linux/inotify.h
_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IGNORED, _ISDIR = 0x400, 0x800, 0x4000, 0x8000, 0x40000000
_ONLYDIR, _DONT_FOLLOW, _EXCL_UNLINK = 0x01000000, 0x02000000, 0x04000000
_MASK = (
    _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
    | _DONT_FOLLOW | _EXCL_UNLINK
)
_EVENT = struct.Struct("iIII")
_BATCH_S = 0.02
_BUFFER = 1 << 16
_DIRECTORIES = 1 << 16
"""Watched at most; fs.inotify.max_user_watches is often less. Beyond, events are lost, and that is said."""
_FOUND = 4096
"""Entries of directories that came whole (moved in, unpacked) that are told one by one in a batch."""
_AGAIN_S = 1.0
_LONGEST = 4000


def run(path: str, out: int) -> None:
    """Tell of what happens at and below the directory ``path`` until nobody reads or it is gone. Raises OSError."""
    Watch(path, out).run()


class Watch:
    """The watched directories by the kernel's numbers, and what is to be told."""

    def __init__(self, path: str, out: int) -> None:
        self._root, self._out = "/" + path.strip("/"), out
        os.set_blocking(out, False)
        info = os.stat(self._root)
        if not stat.S_ISDIR(info.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        self._device = info.st_dev
        self._queue = _inotify()
        self._paths: dict[int, str] = {}
        self._told: dict[str, str] = {}
        self._lost = self._over = False
        self._scanned, self._found = 0.0, _FOUND
        self._add(self._root, follow=True)
        self._scan(self._root, tell=False)

    def run(self) -> None:
        """Until the other end of ``out`` is closed, or the root is gone."""
        data = _line("", "armed")
        poller = select.poll()
        poller.register(self._queue, select.POLLIN)
        poller.register(self._out, 0)
        while True:
            data = self._write(data)
            if not self._paths and not data:
                return
            # Nothing is taken from the kernel while the engine has not read the last: its queue is the bound.
            poller.modify(self._queue, 0 if data else select.POLLIN)
            poller.modify(self._out, select.POLLOUT if data else 0)
            ready = dict(poller.poll())
            if ready.get(self._out, 0) & (select.POLLERR | select.POLLNVAL):
                return
            if self._queue in ready:
                time.sleep(_BATCH_S)
                self._take(os.read(self._queue, _BUFFER))
                data = self._tell()

    def _write(self, data: bytes) -> bytes:
        try:
            return data[os.write(self._out, data):] if data else data
        except BlockingIOError:
            return data

    # -- events --------------------------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            name = os.fsdecode(data[at:at + length].rstrip(b"\0"))
            at += length
            if mask & _OVERFLOW:
                self._over = self._lost = True
                continue
            above = self._paths.get(number)
            if above is None:
                continue
            if mask & _IGNORED:
                del self._paths[number]
            elif name:
                self._child(above, name, mask)
            elif above == self._root and mask & (_DELETE_SELF | _MOVE_SELF):
                self._note(above, "deleted")
                self._forget(above)
        if self._lost and time.monotonic() - self._scanned > _AGAIN_S:
            self._scan(self._root, tell=False)
            self._lost, self._scanned = False, time.monotonic()

    def _child(self, above: str, name: str, mask: int) -> None:
        path = os.path.join(above, name)
        if mask & (_CREATE | _MOVED_TO):
            self._note(path, "created")
            if mask & _ISDIR and self._add(path):
                self._scan(path, tell=True)
        elif mask & (_DELETE | _MOVED_FROM):
            self._note(path, "deleted")
            if mask & _ISDIR:
                self._forget(path)
        else:
            self._note(path, "changed")

    def _note(self, path: str, kind: str) -> None:
        """Within one batch: what is new stays new when it changes, and what came and went was never there."""
        before = self._told.pop(path, None)
        if before == "created" and kind == "deleted":
            return
        if before == "created" and kind == "changed":
            kind = before
        elif before == "deleted" and kind == "created":
            kind = "changed"
        self._told[path] = kind

    def _tell(self) -> bytes:
        lines = [_line(self._root, "overflow")] if self._over else []
        lines += [_line(path, kind) for path, kind in self._told.items()]
        self._told.clear()
        self._over, self._found = False, _FOUND
        return b"".join(lines)

    # -- watched directories -------------------------------------------------------------------------------------------

    def _add(self, path: str, *, follow: bool = False) -> bool:
        """Watch one directory; False where it is none any more, or too much."""
        if len(self._paths) >= _DIRECTORIES or len(os.fsencode(path)) > _LONGEST:
            self._over = True
            return False
        try:
            number = _add_watch(self._queue, path, _MASK & ~(_DONT_FOLLOW if follow else 0))
        except OSError as error:
            if path == self._root:
                raise
            self._over = self._over or error.errno == errno.ENOSPC
            return False
        self._paths[number] = path
        return True

    def _scan(self, path: str, *, tell: bool) -> None:
        """Watch all directories below ``path``, which is; with ``tell`` what lies in them is told as created."""
        todo = [path]
        while todo:
            above = todo.pop()
            try:
                with os.scandir(above) as entries:
                    for entry in entries:
                        is_directory = entry.is_dir(follow_symlinks=False)
                        if tell and self._found > 0:
                            self._found -= 1
                            self._note(entry.path, "created")
                        elif tell:
                            self._over = True
                        # Other file systems (/proc, the host's /usr) are another matter.
                        if (is_directory and entry.stat(follow_symlinks=False).st_dev == self._device
                                and self._add(entry.path)):
                            todo.append(entry.path)
            except OSError:
                continue  # it went while we looked

    def _forget(self, path: str) -> None:
        """Stop watching ``path`` and all below it."""
        below = path + "/"
        for number in [known for known, at in self._paths.items() if at == path or at.startswith(below)]:
            del self._paths[number]
            _libc.inotify_rm_watch(self._queue, number)


def _line(path: str, kind: str) -> bytes:
    return json.dumps([path, kind]).encode() + b"\n"


def _inotify() -> int:
    """inotify_init1(2). Raises OSError (EMFILE where the box has too many already)."""
    fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:
        raise OSError(code := ctypes.get_errno(), os.strerror(code))
    return int(fd)


def _add_watch(queue: int, path: str, mask: int) -> int:
    number = _libc.inotify_add_watch(queue, os.fsencode(path), ctypes.c_uint32(mask))
    if number < 0:
        raise OSError(code := ctypes.get_errno(), os.strerror(code))
    return int(number)
