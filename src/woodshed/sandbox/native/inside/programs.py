"""Programs of a box by name: which files a command needs to start, and a loader that starts no command of its own.

The kernel opens three kinds of file to be executed: the command, the interpreter that a script names in its first line,
and the loader that an ELF file names (PT_INTERP); so a right to execute must cover all three. A loader with that right
would run any program given as its argument. :func:`guarded` makes a copy that the kernel still takes as a loader, but
refuses as a command: it names a loader of its own that cannot be opened, and the kernel reads that name of commands
only (fs/binfmt_elf.c, load_elf_binary and load_elf_interp).
"""
# ruff: noqa: PTH116, PTH118, PTH119, PTH123
# (This process stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import os
import stat
import struct

INTERPRETERS = frozenset({
    "ash", "awk", "bash", "bun", "busybox", "csh", "dash", "deno", "emacs", "erl", "ex", "expect", "fish", "gawk",
    "gdb", "guile", "irb", "java", "jshell", "julia", "ksh", "lua", "luajit", "mawk", "mksh", "mono", "nawk", "node",
    "nodejs", "octave", "original-awk", "perl", "php", "pwsh", "pypy", "python", "qemu", "r", "rscript", "ruby",
    "scheme", "sh", "tcc", "tclsh", "toybox", "vi", "view", "vim", "wish", "zsh",
})  # fmt: skip
"""Programs that do what their input says. By name only: there is no telling of all of them."""
MANY = frozenset({"busybox", "coreutils", "sbase-box", "toybox", "uutils", "ubase-box"})
"""Programs that are many commands under one file; which one it is, the caller says."""
_LOADERS = ("ld-linux", "ld-musl", "ld.so", "ld64.so", "ld-2.", "ld-elf")

_HEAD = 256  # BINPRM_BUF_SIZE, include/uapi/linux/binfmts.h
_SCRIPTS = 5  # fs/exec.c: interpreters of interpreters
_LARGEST_LOADER = 64 << 20
# Of elf(5):
_MAGIC, _CLASS_64, _LITTLE = b"\x7fELF", 2, 1
_HEADER, _SEGMENT = 64, 56
_PT_INTERP, _PT_NOTE, _PT_GNU_STACK = 3, 4, 0x6474E551
_TABLE = 65536  # the kernel reads no more of it
_PATH_MAX = 4096


class Unenforceable(Exception):
    """This image cannot be held to the policy; another try would fail alike."""


def interprets(name: str) -> bool:
    """Whether a program of this name is a known interpreter: python3.11 and /usr/bin/perl5 are."""
    return name.rpartition("/")[2].lower().rstrip("0123456789.-") in INTERPRETERS


def loads(name: str) -> bool:
    """Whether a program of this name is a loader of ELF files."""
    return name.rpartition("/")[2].startswith(_LOADERS)


def named(name: str, search: str) -> list[str]:
    """The files that ``name`` may mean, links resolved: itself where it is a path, else all of ``search`` (a PATH)."""
    where = [name] if "/" in name else [os.path.join(folder, name) for folder in search.split(":")
                                        if folder.startswith("/")]
    return list(dict.fromkeys(os.path.realpath(path) for path in where if _is_program(path)))


def _is_program(path: str) -> bool:
    """By its mode: access(2) says no wherever a mount is noexec, as those of programs to be allowed may be yet."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and mode & 0o111 != 0


class Allowed:
    """The files that the commands of an allow set need. All paths are resolved."""

    def __init__(self, names: list[str], search: str) -> None:
        """Raises Unenforceable for a name that means nothing here."""
        self.files: set[str] = set()
        self.loaders: set[str] = set()
        self.notes: list[str] = []
        self._search = search
        for name in names:
            found = named(name, search)
            if not found:
                raise Unenforceable(f"commands.allow: {name!r} is no program of this image, or a rule hides it")
            for path in found:
                self._tell(name, path)
                self._add(path, name, _SCRIPTS)
        if both := self.files & self.loaders:
            raise Unenforceable(f"commands.allow: {min(both)!r} is a loader, which runs any program")

    def _tell(self, name: str, path: str) -> None:
        real = os.path.basename(path)
        if real in MANY and os.path.basename(name) != real:
            self.notes.append(f"commands.allow: {name!r} is {real}, many commands in one file: it allows them all")
        elif interprets(real) and not interprets(name):
            self.notes.append(f"commands.allow: {name!r} is the interpreter {real!r}: the set is advisory")

    def _add(self, path: str, name: str, depth: int) -> None:
        if path in self.files or depth == 0:
            return
        self.files.add(path)
        with open(path, "rb") as file:
            head = file.read(_HEAD)
            if head.startswith(b"#!"):
                self._add_script(os.fsdecode(head[2:].split(b"\n", 1)[0]), name, depth)
            elif loader := loader_of(file.fileno()):
                self.loaders.add(os.path.realpath(loader))

    def _add_script(self, line: str, name: str, depth: int) -> None:
        words = line.split()
        wanted = words[:1]
        if wanted and os.path.basename(wanted[0]) == "env":
            wanted += [word for word in words[1:] if not word.startswith("-") and "=" not in word][:1]
        for word in wanted:
            for path in named(word, self._search):
                if path not in self.files:
                    self.notes.append(f"commands.allow: {name!r} is a script, so {path!r} can be started too"
                                      + (": an interpreter, the set is advisory" if interprets(path) else ""))
                self._add(path, name, depth - 1)


def _segments(head: bytes, table: bytes) -> list[tuple[int, tuple[int, ...]]]:
    """Offset within the table, and (type, flags, offset, vaddr, paddr, size in file, size in memory, align)."""
    count = struct.unpack_from("<H", head, 56)[0]
    return [(at, struct.unpack_from("<IIQQQQQQ", table, at))
            for at in range(0, min(count * _SEGMENT, len(table) - _SEGMENT + 1), _SEGMENT)]


def _is_elf(head: bytes) -> bool:
    return (len(head) == _HEADER and head.startswith(_MAGIC) and head[4] == _CLASS_64 and head[5] == _LITTLE
            and struct.unpack_from("<H", head, 54)[0] == _SEGMENT)


def loader_of(fd: int) -> str | None:
    """The loader that the ELF file names; None for a static one, or a file that is none of this machine's."""
    head = os.pread(fd, _HEADER, 0)
    if not _is_elf(head):
        return None
    table = os.pread(fd, struct.unpack_from("<H", head, 56)[0] * _SEGMENT, struct.unpack_from("<Q", head, 32)[0])
    for _, segment in _segments(head, table):
        if segment[0] == _PT_INTERP:
            path = os.fsdecode(os.pread(fd, min(segment[5], _PATH_MAX), segment[2]).split(b"\0", 1)[0])
            return path if path.startswith("/") else None
    return None


def guarded(path: str) -> bytes:
    """The loader at ``path``, changed so that it cannot be started. Raises Unenforceable where that fails."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size > _LARGEST_LOADER:
            raise Unenforceable(f"commands.allow: {path!r} is no loader")
        data = bytearray(file.read(_LARGEST_LOADER))
    head = bytes(data[:_HEADER])
    if not _is_elf(head):
        raise Unenforceable(f"commands.allow: {path!r} is no loader")
    start = struct.unpack_from("<Q", head, 32)[0]
    by_type = {segment[0]: at for at, segment in reversed(_segments(head, bytes(data[start:start + _TABLE])))}
    # A note tells nothing that anyone needs, nor does what a loader says of its stack: programs say that themselves.
    at = next((by_type[kind] for kind in (_PT_INTERP, _PT_NOTE, _PT_GNU_STACK) if kind in by_type), None)
    if at is None:
        raise Unenforceable(f"commands.allow: {path!r} has no segment to spare, so it would run any program")
    # "/" is a directory, which cannot be executed. Only the first PT_INTERP of a file is read.
    struct.pack_into("<IIQQQQQQ", data, start + at, _PT_INTERP, 4, len(data), len(data), len(data), 2, 2, 1)
    return bytes(data + b"/\0")
