"""Trees with their owners, into and out of a box: layers of images, and what a Dockerfile copies.

The archive is hostile. It is read by a helper of a box: whatever it says, it says to a process that can reach the box's
own files alone. Names that climb out, and names that pass a link, are refused; devices are left out. Deletions
(``.wh.NAME``, ``.wh..wh..opq``) become nothing here, for an overlay takes no marks from inside: they are reported, and
the engine sets the marks. Format: OCI Image Layer Specification 1.1, "Representing Changes".
"""
# ruff: noqa: PTH102, PTH112, PTH116, PTH119, PTH120, SIM105
# (Loaded in the box's first process, which stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence

from woodshed.sandbox.native.inside import files, frames, tarring, wire
from woodshed.sandbox.native.inside.tarring import Member, Refused

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WHITEOUT, _OPAQUE, _META = b".wh.", b".wh..wh..opq", b".wh..wh."
_IDS = 65536
_MODE = 0o7777
_BLOCK = 512
_MOUNTED = ("dev", "proc", "sys")
_DEEPEST = 400
_HELD_BYTES = 64 << 20
"""Of names that are remembered to the end (directories' modes, deletions); an image has a hundredth of that."""

Report = Callable[[bytes, bytes], None]
"""Told of what the engine is to do or know: a kind, and a path or a text."""


def unpack(message: wire.Message, fds: list[int]) -> None:
    """Unpack the archive that the first of ``fds`` has below the directory ``path``.

    With ``layer`` it is a layer: deletions and the top's mode are reported, into the same descriptor, when all is done.
    Otherwise every name is taken as it is, and missing directories above become ``owner``'s. With ``only``, the one
    file of the archive, it gets the name ``path`` unless that is a directory.
    """
    stream = frames.Reader(lambda size: os.read(fds[0], size))
    path, rename = os.path.normpath(files.checked(message)), b""
    if message.get("only") and not os.path.isdir(path):
        path, _, name = path.rpartition("/")
        rename, path = os.fsencode(name), path or "/"
    made = _make(path, message.get("owner", (0, 0)))
    tree = _Tree(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), message)
    try:
        archive = tarring.Archive(stream, attributes=True)
        while (member := archive.next()) is not None:
            if rename:
                member.raw = rename
            tree.place(member)
        tree.finish(top=made or bool(message.get("layer")))
        while os.read(fds[0], frames.CHUNK):
            pass  # what pads the archive
    except frames.Malformed:
        raise Refused("the archive ends early") from None
    finally:
        tree.close()
    if message.get("layer"):
        _write(fds[0], tree.report())


def _make(path: str, owner: Sequence[int]) -> bool:
    """Make what is missing of ``path``; whether the last part was."""
    above, missing = path, []
    while not os.path.isdir(above):
        missing.append(above)
        above = os.path.dirname(above) or "/"
    for part in reversed(missing):
        os.mkdir(part, 0o755)
        _own(part, owner[0], owner[1])
    return bool(missing)


def _own(path: str, uid: int, gid: int) -> bool:
    if uid or gid:
        try:
            os.chown(path, uid, gid)
        except OSError:
            return False
    return True


class _Tree:
    """What is unpacked, below the directory ``top``."""

    def __init__(self, top: int, message: wire.Message) -> None:
        self._top, self._layer, self._owners = top, bool(message.get("layer")), bool(message.get("owners", True))
        self._above: tuple[bytes, int] = (b"", -1)
        self._directories: dict[bytes, tuple[int, int]] = {}
        self._whiteouts: list[bytes] = []
        self._opaque: list[bytes] = []
        self._notes: dict[bytes, int] = {}
        self._held = 0
        self._left = message.get("bytes", 1 << 62)

    def close(self) -> None:
        for fd in (self._top, self._above[1]):
            if fd >= 0:
                os.close(fd)

    # -- one member ----------------------------------------------------------------------------------------------------

    def place(self, member: Member) -> None:
        try:
            path = os.fsencode(member.path(member.raw.lstrip(b"/")))
            if path.count(b"/") > _DEEPEST:
                raise Refused(f"{_shown(member.raw)}: more than {_DEEPEST} directories deep")
            if not path:
                self._top_directory(member)
            elif not (self._layer and self._mark(path, member)):
                self._make(path, member)
        except OSError as error:
            if error.errno == errno.EMLINK:
                raise Refused(f"{_shown(member.raw)}: more names than one file can have") from None
            if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
                raise
            raise Refused(f"{_shown(member.raw)}: a link, file or directory stands in its way") from None

    def _top_directory(self, member: Member) -> None:
        if member.kind != b"5":
            raise Refused(f"{_shown(member.raw)}: no name of a file")
        self._remember(b"", member)
        self._chown(self._top, member)
        member.skip(member.size)

    def _mark(self, path: bytes, member: Member) -> bool:
        """Whether the member is a deletion, noted then. Raises Refused for what looks like one, but is none."""
        parts = path.split(b"/")
        if not any(part.startswith(_WHITEOUT) for part in parts):
            return False
        name = parts[-1]
        if any(part.startswith(_WHITEOUT) for part in parts[:-1]) or member.kind == b"5":
            raise Refused(f"{_shown(path)}: a directory with the name of a deletion")
        above = b"/".join(parts[:-1])
        if name == _OPAQUE:
            self._hold(above)
            self._opaque.append(above)
        elif not name.startswith(_META):  # else AUFS' own bookkeeping
            hidden = name[len(_WHITEOUT):]
            if hidden in (b"", b".", b".."):
                raise Refused(f"{_shown(path)}: the deletion of nothing")
            self._hold(path)
            self._whiteouts.append(above + b"/" + hidden if above else hidden)
        self._parent(path)
        member.skip(member.size if member.kind == b"0" else 0)
        return True

    def _make(self, path: bytes, member: Member) -> None:
        kind = member.kind
        if kind in (b"3", b"4"):
            self._count(b"devices")
            return
        parent, name = self._parent(path)
        if kind == b"5":
            if self._directory(parent, name) or self._layer:  # what was there before a copy stays as it was
                self._remember(path, member)
                self._chown_name(parent, name, member)
            member.skip(member.size)
            return
        if kind == b"1":
            self._hard(path, member, parent, name)
            return
        self._clear(parent, name)
        if kind == b"0":
            self._file(parent, name, member)
        elif kind == b"2":
            if not member.target or b"\0" in member.target:
                raise Refused(f"{_shown(member.raw)}: a link to nothing")
            os.symlink(member.target, name, dir_fd=parent)
            self._chown_name(parent, name, member)
            os.utime(name, ns=_time(member), dir_fd=parent, follow_symlinks=False)
            member.skip(member.size)
        elif kind == b"6":
            os.mkfifo(name, 0o600, dir_fd=parent)
            self._chown_name(parent, name, member)
            os.chmod(name, _mode(member), dir_fd=parent)
        else:
            sparse = " (a sparse one)" if kind == b"S" else ""
            raise Refused(f"{_shown(member.raw)}: an entry of a kind no layer has{sparse}")

    def _file(self, parent: int, name: bytes, member: Member) -> None:
        self._left -= member.size
        if self._left < 0:
            raise Refused("the archive unpacks to more bytes than are allowed")
        fd = os.open(name, _NEW, 0o600, dir_fd=parent)
        try:
            end = 0
            for offset, data in member.pieces():
                if data.count(0) == len(data):
                    continue  # a hole
                view, at = memoryview(data), offset
                while view:
                    done = os.pwrite(fd, view, at)
                    view, at = view[done:], at + done
                end = at
            if end < member.size:
                os.ftruncate(fd, member.size)
            self._chown(fd, member)
            self._attributes(fd, member)
            os.fchmod(fd, _mode(member))
            os.utime(fd, ns=_time(member))
        finally:
            os.close(fd)
        member.skip(-member.size % _BLOCK, padded=False)

    def _hard(self, path: bytes, member: Member, parent: int, name: bytes) -> None:
        source = os.fsencode(member.path(member.target.lstrip(b"/")))
        member.skip(member.size)
        if source == path or not source:
            raise Refused(f"{_shown(member.raw)}: a hard link to itself")
        above, _, old = source.rpartition(b"/")
        try:
            start = frames.open_beneath(self._top, os.fsdecode(above) or ".", _DIRECTORY)
        except OSError:
            raise Refused(f"{_shown(member.raw)}: a hard link to what is not there") from None
        try:
            mode = os.stat(old, dir_fd=start, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                raise Refused(f"{_shown(member.raw)}: a hard link to a directory")
            self._clear(parent, name)
            os.link(old, name, src_dir_fd=start, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            raise Refused(f"{_shown(member.raw)}: a hard link to what is not there") from None
        finally:
            os.close(start)

    # -- ways there ----------------------------------------------------------------------------------------------------

    def _parent(self, path: bytes) -> tuple[int, bytes]:
        """The directory that holds ``path``, made where it is missing, and its name there."""
        above, _, name = path.rpartition(b"/")
        if not above:
            return self._top, name
        if self._above[0] != above or self._above[1] < 0:
            try:
                fd = frames.open_beneath(self._top, os.fsdecode(above), _DIRECTORY)
            except FileNotFoundError:
                parent, last = self._parent(above)
                os.mkdir(last, 0o755, dir_fd=parent)
                fd = os.open(last, _DIRECTORY, dir_fd=parent)
            if self._above[1] >= 0:
                os.close(self._above[1])
            self._above = above, fd
        return self._above[1], name

    @staticmethod
    def _directory(parent: int, name: bytes) -> bool:
        """Have a directory there; whether it is a new one."""
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                return False
            os.unlink(name, dir_fd=parent)
            os.mkdir(name, 0o700, dir_fd=parent)
        return True

    @staticmethod
    def _clear(parent: int, name: bytes) -> None:
        """Make room: a later member replaces an earlier one, but no directory."""
        try:
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            pass

    # -- what it is like -----------------------------------------------------------------------------------------------

    def _remember(self, path: bytes, member: Member) -> None:
        if path not in self._directories:
            self._hold(path)
        self._directories[path] = _mode(member), _time(member)[0]

    def _hold(self, path: bytes) -> None:
        self._held += len(path) + 100
        if self._held > _HELD_BYTES:
            raise Refused("the archive has more directories and deletions than any image")

    def _count(self, what: bytes) -> None:
        self._notes[what] = self._notes.get(what, 0) + 1

    def _chown(self, fd: int, member: Member) -> None:
        self._give(lambda uid, gid: os.fchown(fd, uid, gid), member)

    def _chown_name(self, parent: int, name: bytes, member: Member) -> None:
        self._give(lambda uid, gid: os.chown(name, uid, gid, dir_fd=parent, follow_symlinks=False), member)

    def _give(self, chown: Callable[[int, int], None], member: Member) -> None:
        uid, gid = _ids(member)
        if not uid and not gid:
            return
        if not self._owners or uid >= _IDS or gid >= _IDS:
            self._count(b"owners")
            return
        chown(uid, gid)

    def _attributes(self, fd: int, member: Member) -> None:
        before = os.fsdecode(tarring.XATTR)
        for key, value in member.names.items():
            if not key.startswith(before):
                continue
            name = key[len(before):]
            if not name.startswith("user.") or name.startswith("user.overlay.") or len(name) > 255 or "\0" in name:
                self._count(b"attributes")
                continue
            try:
                os.setxattr(fd, name, value)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSPC, errno.E2BIG, errno.ERANGE, errno.ENOTSUP):
                    raise
                self._count(b"attributes")  # more than a file can have, or a file system without

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self, *, top: bool) -> None:
        """Modes and times of directories, deepest first: one may shut out its owner. A layer's top is the engine's."""
        for path, (mode, mtime) in reversed(self._directories.items()):
            if not path and not top:
                continue
            fd = os.dup(self._top) if not path else frames.open_beneath(self._top, os.fsdecode(path), _DIRECTORY)
            try:
                if path or not self._layer:
                    os.fchmod(fd, mode)
                os.utime(fd, ns=(mtime, mtime))
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EACCES):
                    raise
            finally:
                os.close(fd)

    def report(self) -> bytes:
        """What the engine is to do: kind, text and NUL, one after the other."""
        mode = self._directories.get(b"", (0o755, 0))[0]
        lines = [b"m%o" % mode, *(b"o" + path for path in self._opaque), *(b"w" + path for path in self._whiteouts)]
        lines += [b"n%d %b" % (count, what) for what, count in self._notes.items()]
        return b"".join(line + b"\0" for line in lines) + b"e\0"


def _mode(member: Member) -> int:
    return tarring.number(member.header[100:108]) & _MODE


def _ids(member: Member) -> tuple[int, int]:
    uid, gid = (
        tarring.decimal(member.names[key]) if key in member.names else tarring.number(field)
        for key, field in (("uid", member.header[108:116]), ("gid", member.header[116:124]))
    )
    return uid, gid


def _time(member: Member) -> tuple[int, int]:
    """Nanoseconds, twice; what cannot be a time is 0."""
    whole, _, fraction = member.names.get("mtime", b"").partition(b".")
    if whole.isdigit() and len(whole) < 11 and (not fraction or fraction.isdigit()):
        value = int(whole) * 10**9 + int(fraction[:9].ljust(9, b"0") or b"0")
    else:
        value = min(tarring.number(member.header[136:148]), (1 << 33) - 1) * 10**9
    return value, value


def _shown(raw: bytes) -> str:
    return repr(os.fsdecode(raw[:200]))


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]


# -- out of a box ------------------------------------------------------------------------------------------------------


def pack(message: wire.Message, fds: list[int]) -> None:
    """Write ``paths`` as one archive into the first of ``fds``, owners and all.

    Of a directory its contents are written, of anything else itself under its own name; a link among ``paths`` is
    followed. Second names of one file are hard links. Devices, sockets and what a box mounts are left out.
    """
    names: dict[tuple[int, int], bytes] = {}
    for path in message["paths"]:
        real = os.path.realpath(files.checked({"path": path}))
        base = b"" if os.path.isdir(real) else os.fsencode(os.path.basename(path.rstrip("/")))
        walk = frames.walk(real, lambda path, why: None, without=os.stat("/proc").st_dev)
        for below, info, fd, target in walk:
            if real == "/" and below.partition("/")[0] in _MOUNTED and "/" in below:
                continue
            name = b"/".join(part for part in (base, os.fsencode(below)) if part)
            if name:
                _entry(name, info, fd, os.fsencode(target), names, fds[0], message)
    _write(fds[0], bytes(2 * _BLOCK))


def _entry(
    name: bytes, info: os.stat_result, fd: int, target: bytes, names: dict[tuple[int, int], bytes], out: int,
    message: wire.Message,
) -> None:
    kind, size = b"5", 0
    if fd >= 0:
        first = names.setdefault((info.st_dev, info.st_ino), name) if info.st_nlink > 1 else name
        kind, size, target = (b"0", info.st_size, b"") if first == name else (b"1", 0, first)
    elif stat.S_ISLNK(info.st_mode):
        kind = b"2"
    uid, gid = message.get("owner") or (info.st_uid, info.st_gid)
    mode = info.st_mode if message.get("mode") is None or kind == b"2" else message["mode"]
    _write(out, _header(name, (mode, int(info.st_mtime)), kind, size, target, (uid, gid)))
    if kind == b"0":
        for data in _content(fd, size):
            _write(out, data)


def _content(fd: int, size: int) -> Iterator[bytes]:
    """Exactly ``size`` bytes and what fills the block, whatever the file is by now."""
    at = 0
    while at < size:
        data = os.pread(fd, min(frames.CHUNK, size - at), at) or bytes(min(frames.CHUNK, size - at))
        at += len(data)
        yield data
    yield bytes(-size % _BLOCK)


def _header(
    name: bytes, like: tuple[int, int], kind: bytes, size: int, target: bytes, ids: tuple[int, int]
) -> bytes:
    """The blocks before a member's content, of a mode and time ``like``: POSIX pax where ustar has no room."""
    long = {b"path": name} if len(name) > 100 else {}
    long |= {b"linkpath": target} if len(target) > 100 else {}
    long |= {b"size": b"%d" % size} if size >= 1 << 33 else {}
    before = b""
    if long:
        records = b"".join(tarring.record(key, value) for key, value in long.items())
        before = _block(b"././@PaxHeader", 0o644, (0, 0), len(records), 0, b"x", b"") + records
        before += bytes(-len(records) % _BLOCK)
    mtime = min(max(0, like[1]), (1 << 33) - 1)
    size = 0 if size >= 1 << 33 else size
    return before + _block(name[:100], like[0] & _MODE, ids, size, mtime, kind, target[:100])


def _block(name: bytes, mode: int, ids: tuple[int, int], size: int, mtime: int, kind: bytes, target: bytes) -> bytes:
    numbers = b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (mode, *ids, size, mtime)
    block = name.ljust(100, b"\0") + numbers + b" " * 8 + kind + target.ljust(100, b"\0") + b"ustar\x0000"
    block = block.ljust(_BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]
