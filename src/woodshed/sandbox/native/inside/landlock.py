"""Landlock: rights that a process and all it starts give up for good, by file, whatever they are called.

Access rights and structures: include/uapi/linux/landlock.h of Linux 6.18; landlock(7).
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from woodshed.sandbox.native.inside import syscalls

EXECUTE, WRITE_FILE = 1 << 0, 1 << 1
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE = sum(1 << bit for bit in range(6, 13))  # CHAR DIR REG SOCK FIFO BLOCK SYM
REFER, _TRUNCATE = 1 << 13, 1 << 14
WRITING = WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE | _TRUNCATE
"""All that changes a file or a directory."""
_OF_FILES = EXECUTE | WRITE_FILE | _TRUNCATE
_SINCE = {REFER: 2, _TRUNCATE: 3}
"""The version of Landlock that knows a right; all others are of the first."""
_SCOPES, _SCOPES_SINCE = 1 | 2, 6
"""Abstract unix sockets and signals: of processes outside. The namespaces part these already; a second wall is free."""
_PATH_BENEATH = 1
_CREATE, _ADD, _RESTRICT = 444, 445, 446

_LONG, _POINTER = ctypes.c_long, ctypes.c_void_p
_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: int | bytes | None) -> int:
    typed = [ctypes.c_char_p(argument) if isinstance(argument, bytes) else _LONG(argument or 0)
             for argument in arguments]
    result: int = _libc.syscall(_LONG(number), *typed)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock: {os.strerror(code)}")
    return result


class Ruleset:
    """Rights that are taken away but where granted. Nothing holds before :meth:`restrict`."""

    def __init__(self, handled: int) -> None:
        """``handled``: these rights. Raises OSError where the kernel has no Landlock."""
        self.abi = syscalls.landlock_abi()
        # REFER is denied by every ruleset, handled or not: only one that handles it can grant it.
        self.handled = self._known(handled | REFER)
        attributes = struct.pack("QQQ", self.handled, 0, _SCOPES if self.abi >= _SCOPES_SINCE else 0)
        # A kernel that does not know a field refuses the size, so it gets those of its version alone.
        size = 24 if self.abi >= _SCOPES_SINCE else 8
        self.fd = _call(_CREATE, attributes, size, 0)

    def _known(self, rights: int) -> int:
        for right, since in _SINCE.items():
            if self.abi < since:
                rights &= ~right
        return rights

    def grant(self, rights: int, paths: Iterable[str]) -> None:
        """Allow ``rights``, as far as they are handled, on each path and all below it. Links are followed."""
        for path in paths:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                some = rights & self.handled
                if not os.path.isdir(path):  # noqa: PTH112 (no pathlib in this process)
                    some &= _OF_FILES
                if some:
                    _call(_ADD, self.fd, _PATH_BENEATH, struct.pack("=Qi", some, fd), 0)
            finally:
                os.close(fd)

    def restrict(self) -> None:
        """From now on, for this process and all it starts. Needs no_new_privs."""
        _call(_RESTRICT, self.fd, 0)
        os.close(self.fd)
