"""How a shell is told to run one command of many, in bash and in POSIX shells.

The shell reads its script, a few lines for each command, from a socket that is its standard input. The text of the
command stands in a memory file that we rewrite and it reads with ``.``, so it may be of any size, and nothing in it (an
open quote, a here-document, ``break``, a syntax error) reaches the lines around it. While it runs, standard input is
/dev/null and both descriptors are put away where no program that it starts gets them. When it has ended the next line
of the script reports status and directory, and a token that nobody inside has read before.

So no output, and no program, can forge the end of a command: a socket is not to be opened through /proc, and ptrace is
refused. What runs in the shell itself can write to the copy that the shell put away: it lies to itself alone, as a
shell function named ``ls`` does.

Weighed: with ``eval`` in place of ``.`` an open quote costs bash its parser. With ``.``, an open ``$(`` can corrupt the
heap of bash 5.2.15, as it does in any script: a later command may then end with 134 or 139, and the next one gets a new
shell and says so.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import PurePosixPath

from woodshed.sandbox.native.inside.commands import INTERRUPT

_ROOM = 300
"""Open files that a bash needs so that its descriptors may be those that no script uses."""

# A trap runs when the command that the shell waits for has ended, and before the next begins. bash then returns from
# everything up to the script it reads (its manual, extdebug: "If the command run by the DEBUG trap returns a value of
# 2 … the shell simulates a call to return"), which has no BASH_SOURCE. In others an error ends the ``.`` (XCU 2.8.1),
# and would end the shell outside of it.
_BASH = r"""
_woodshed_status() { case $- in *e*) ;; *) return "$1" ;; esac; }
_woodshed_return() { return 2; }
trap 'shopt -s extdebug; trap '\''[ -z "${BASH_SOURCE-}" ] || _woodshed_return'\'' DEBUG' @
"""
_POSIX = r"""
_woodshed_status() { case $- in *e*) ;; *) return "$1" ;; esac; }
trap '[ -z "${_woodshed_in-}" ] || : "${_woodshed?the command was ended}"' @
"""
_BASH_MENDED = "trap - DEBUG; shopt -u extdebug\n"
_RUN = """{{ command ulimit -S -{locks} {mark}; }} 2>/dev/null
{{ command . /dev/fd/{name}; }} </dev/null {name}<&{text} {text}<&-
{{ _woodshed_last=$? _woodshed_in=; command printf '%s\\n%s\\n{token}\\n' "$_woodshed_last" "$PWD" >&0; }} 2>/dev/null
"""


@dataclass(frozen=True, slots=True)
class Report:
    """How a command ended: its status, and where the shell is then."""

    status: int
    cwd: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a kind of shell wants to hear. ``text`` is the descriptor it has the memory file at, ``name`` one more."""

    argv: tuple[str, ...]
    begin: str
    mended: str
    locks: str
    text: int
    name: int

    def prepare(self) -> bytes:
        """The lines before the first command."""
        return self.begin.replace("@", str(int(INTERRUPT))).encode()

    def run(self, mark: int, *, interrupted: bool) -> tuple[bytes, bytes]:
        """The lines for one command, and the token that ends its report. ``interrupted``: the one before was."""
        token = secrets.token_hex(16)
        lines = _RUN.format(locks=self.locks, mark=mark, name=self.name, text=self.text, token=token)
        return ((self.mended if interrupted else "") + lines).encode(), token.encode()

    def text_of(self, command: bytes, status: int) -> bytes:
        """What the memory file holds: ``command``, begun with ``$?`` as the one before left it."""
        prefix = b"{ exec %d<&-; _woodshed_in=1; _woodshed_status %d; } 2>/dev/null; " % (self.name, status & 255)
        return prefix + command + b"\n"


def dialect(shell: str, open_files: int) -> Dialect:
    """Of ``shell``, a path. In a POSIX shell only one digit can name a descriptor; there, 8 and 9 are ours."""
    if PurePosixPath(shell).name == "bash":
        text, name = (241, 242) if open_files >= _ROOM else (8, 9)
        return Dialect((shell, "--norc"), _BASH, _BASH_MENDED, "x", text, name)
    return Dialect((shell,), _POSIX, "", "w", 8, 9)


def report(said: bytes, token: bytes) -> Report | None:
    """What the shell ``said``, if that is all of a report."""
    if not said.endswith(b"\n" + token + b"\n"):
        return None
    status, _, rest = said[: -len(token) - 2].partition(b"\n")
    try:
        return Report(int(status) & 255, rest.decode(errors="surrogateescape"))
    except ValueError:
        return None
