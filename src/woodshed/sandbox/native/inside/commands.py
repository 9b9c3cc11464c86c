"""Commands of a box: started, watched and ended by PID 1, each with all its descendants."""
# ruff: noqa: PTH115, PTH123, PTH208, SIM105
# (This process stays small: neither pathlib nor contextlib is loaded in it.)
# ruff: noqa: S606
# (Starting programs is what it is for.)

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import socket
import struct
import termios
import time
from collections.abc import Iterable
from typing import NoReturn

from woodshed.sandbox.native.inside import confine, files, wire

# RLIMIT_LOCKS (include/uapi/asm-generic/resource.h) has been without effect since Linux 2.4 and is inherited: its soft
# value marks which exec a process descends from. A program that sets it hides from a timeout, not from kill_all.
_MARK = 10
UNMARKED = (1 << 62) - 1
_KILL_FOR_S = 2.0
_ROUNDS = 100
_DYING_S = 0.001  # between looks at what was killed and has not ended yet
INTERRUPT = signal.SIGRTMAX
"""What makes a session's shell give up its command: it has a trap for it, and nothing else uses it."""
_ABOVE = 16
"""Descriptors for a command's odd numbers wait here, where no number lies that a command gets."""

EXIT_NOT_FOUND, EXIT_NOT_RUN = 127, 126


class Marks:
    """Which exec a process descends from, as something that is inherited: here the rlimit ``_MARK``."""

    def set(self, mark: int) -> None:
        """What this process starts next has this mark; UNMARKED for none."""
        resource.setrlimit(_MARK, (resource.RLIM_INFINITY if mark == UNMARKED else mark, resource.RLIM_INFINITY))

    def of(self, pid: int) -> int:
        """The mark of a process. Raises OSError, ValueError where it has ended."""
        with open(f"/proc/{pid}/limits", "rb") as file:
            for line in file:
                if line.startswith(b"Max file locks"):
                    value = line.split()[3]
                    return UNMARKED if value == b"unlimited" else int(value)
        return UNMARKED

    def join(self, groups: list[int]) -> None:
        """This process is in ``groups`` and in no others any more."""
        os.setgroups(groups)


class Commands:
    """Which child of PID 1 is which command."""

    def __init__(self, channel: socket.socket, groups: list[int], marks: Marks | None = None) -> None:
        self.channel, self.groups, self.marks = channel, groups, marks or Marks()
        self.commands: dict[int, int] = {}  # pid of a command -> id of its exec
        self.leaders: dict[int, int] = {}  # and back
        self.last_mark = 0
        self.operations: dict[str, wire.Operation] = {
            "exec": self._exec, "kill": self._kill, "kill_all": self._kill_all, "pty": self._pty,
            "signal": self._send_signal,
        }

    def reap(self, options: int = os.WNOHANG) -> None:
        """Collect ended children and report those that were commands. With ``options`` 0: until none is left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, options)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                # Only a child that made us its tracer (PTRACE_TRACEME) reports a stop. We trace nobody.
                os.kill(pid, signal.SIGKILL)
                continue
            ident = self.commands.pop(pid, None)
            if ident is not None:
                del self.leaders[ident]
                code = os.waitstatus_to_exitcode(status)
                wire.reply(self.channel, {"id": ident}, {"exit": 128 - code if code < 0 else code, **_spent(usage)})

    def _exec(self, message: wire.Message, fds: list[int]) -> None:
        self._mark_next(message)
        try:
            if self.groups or message["user"] or message.get("group"):
                pid = os.fork()
                if pid == 0:
                    _become(message, fds, self.groups, self.marks)
            else:
                pid = _spawn(message, fds)
        except Exception as error:
            _complain(error, _stderr(message, fds))
            full = isinstance(error, OSError) and error.errno == errno.EAGAIN
            wire.reply(self.channel, message, {"exit": _code(error), "cpu_s": 0.0, "hits": ["pids"] if full else []})
        else:
            self.started(pid, message["id"])

    def _mark_next(self, message: wire.Message) -> None:
        """What is started next descends from ``message``, which may give its own descendants ``marks`` numbers more."""
        self.marks.set(message["id"])
        self.last_mark = max(self.last_mark, message["id"] + message.get("marks", 0))

    def started(self, pid: int, ident: int) -> None:
        """The child ``pid`` is the command ``ident``: its end is the answer."""
        self.commands[pid], self.leaders[ident] = ident, pid

    def _pty(self, message: wire.Message, fds: list[int]) -> None:
        """Like exec, on a terminal made in the box's own devpts; the answer carries its master side."""
        master = self.open_terminal(message)
        try:
            wire.send(self.channel, {"id": message["id"], "started": self.leaders[message["id"]]}, [master])
        finally:
            os.close(master)

    def open_terminal(self, message: wire.Message) -> int:
        """Start the command on a terminal of its own; the master side, the caller's. Raises OSError."""
        master, slave = os.openpty()
        try:
            set_size(slave, message["rows"], message["columns"])
            if message["user"]:
                os.fchown(slave, message["user"], -1)
            self._mark_next(message)
            pid = os.fork()
            if pid == 0:
                os.close(master)
                _become(message, [slave, slave, slave], self.groups, self.marks, terminal=True)
            self.started(pid, message["id"])
        except BaseException:
            os.close(master)
            raise
        finally:
            os.close(slave)
        return master

    def _send_signal(self, message: wire.Message, fds: list[int]) -> None:
        """Signal the process group of the command ``target``, or with ``alone`` itself; nothing where it has ended."""
        number, leader = message["number"], self.leaders.get(message["target"], 0)
        if number not in signal.valid_signals():
            raise OSError(errno.EINVAL, f"no signal has the number {number}")
        if leader > 1:  # ours and not reaped yet: the number is no other process's
            try:
                (os.kill if message.get("alone") else os.killpg)(leader, number)
            except ProcessLookupError:
                _signal(leader, number)  # it has not made its group yet
        wire.reply(self.channel, message, {"ok": 1})

    def _kill(self, message: wire.Message, fds: list[int]) -> None:
        """End the command ``target`` and all its descendants, also those that left its session and lost their parent.

        A process belongs to it by its mark (inherited; ``marks`` numbers from the target's on), by its session, or by
        its parents; a mark never given counts as this one's. Answers when none of them lives, or those that do have
        been killed and only wait for a processor to end on. A tree that outgrows us (a fork bomb) takes every process
        of the box with it. Where the target is one command of a session, the shell ``shell`` is not killed but told to
        give it up; the answer has its directory. ``spare``: not even told.
        """
        target, answer = message["target"], wire.Message(ok=1)
        shell = self.leaders.get(message.get("shell", 0), 0)
        if shell:
            answer["cwd"] = _cwd(shell)
            _signal(shell, INTERRUPT)
        spared = shell or self.leaders.get(message.get("spare", 0), 0)
        leader, until = self.leaders.get(target, -1), time.monotonic() + _KILL_FOR_S
        rounds, killed = 0, set[int]()
        marks = range(target, target + 1 + message.get("marks", 0))
        while doomed := self._descendants(leader, marks, shell, spared):
            grown = not doomed <= killed
            rounds += grown
            if rounds > _ROUNDS or time.monotonic() > until:
                if grown and not spared:
                    _signal(-1)
                break
            for pid in doomed:
                _signal(pid)
            killed |= doomed
            self.reap()
            if not grown:
                time.sleep(_DYING_S)
        wire.reply(self.channel, message, answer)

    def _descendants(self, leader: int, marks: range, shell: int = 0, spared: int = 0) -> set[int]:
        found: set[int] = set()
        parents: dict[int, int] = {}
        for name in os.listdir("/proc"):
            if not name.isdigit() or name == "1":
                continue
            pid = int(name)
            try:
                state, parent, session = _stat(pid)
                if state in "ZX":
                    continue
                parents[pid] = parent
                own = self.marks.of(pid)
                if leader in (pid, session) or own in marks or (own > self.last_mark and own != UNMARKED):
                    found.add(pid)
            except (OSError, ValueError, IndexError):
                continue  # it ended while we looked
        if shell and shell not in found:
            found.update(pid for pid, parent in parents.items() if parent == shell)  # it marks no command of its own
        found.discard(spared)
        grown = True
        while grown:
            grown = False
            for pid, parent in parents.items():
                if parent in found and pid not in found and pid != spared:
                    found.add(pid)
                    grown = True
        return found

    def _kill_all(self, message: wire.Message, fds: list[int]) -> None:
        """kill(-1) signals every process but us in one step, so nothing can be forked past it.

        The answer tells what everything that ever ran here has used.
        """
        _signal(-1)
        self.reap(0)
        wire.reply(self.channel, message, {"ok": 1, **_spent(resource.getrusage(resource.RUSAGE_CHILDREN))})


def _spent(usage: resource.struct_rusage) -> wire.Message:
    """Seconds of CPU, and the peak of the largest single process (getrusage(2))."""
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "peak_kb": usage.ru_maxrss}


def set_size(fd: int, rows: int, columns: int) -> None:
    """The window of a terminal: struct winsize (include/uapi/asm-generic/termios.h), of which two are pixels."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))


def _signal(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it is gone


def _cwd(pid: int) -> str:
    """Where a process is; empty where we may not know (it is another user's) or it has no place any more."""
    try:
        path = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""
    return "" if path.endswith(" (deleted)") else path


def _stat(pid: int) -> tuple[str, int, int]:
    """State, parent and session of a process; its name may hold anything, brackets included."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return fields[0].decode(), int(fields[1]), int(fields[3])


def _spawn(message: wire.Message, fds: list[int]) -> int:
    """Start the command without a copy of ourselves in between (posix_spawn shares our memory until it runs).

    We enter its directory for that: we need none of our own. Raises OSError where it cannot be run.
    """
    _enter(message["cwd"])
    numbers = message.get("at")
    held = _lifted(fds) if numbers is not None else []
    try:
        pairs = _streams(fds) if numbers is None else zip(numbers, held, strict=True)
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in pairs]
        argv, env = message["argv"], message["env"]
        refused: OSError = FileNotFoundError(2, "command not found", argv[0])
        for path in _candidates(argv[0], env):
            try:
                return os.posix_spawn(path, argv, env, file_actions=actions, setsid=True)
            except (FileNotFoundError, NotADirectoryError):
                if path == argv[0]:
                    raise
            except PermissionError as error:
                refused = error
        raise refused
    finally:
        for fd in held:
            os.close(fd)


def _become(
    message: wire.Message, fds: list[int], groups: list[int], marks: Marks, *, terminal: bool = False
) -> NoReturn:
    """Turn this fresh child into the command: what :func:`_spawn` cannot do (another user, cgroups, a terminal)."""
    code = EXIT_NOT_RUN
    try:
        for group in groups:
            os.write(group, b"0")
        os.setsid()
        if terminal:
            files.take_terminal(fds[0])
        numbers = message.get("at")
        for number, fd in _streams(fds) if numbers is None else zip(numbers, _lifted(fds), strict=True):
            os.dup2(fd, number)
        user: int = message["user"]
        primary: int = message.get("group", user)
        if user or primary:
            if user:
                confine.empty_bounding_set()
            marks.join(message.get("groups", []))
            os.setresgid(primary, primary, primary)
            os.setresuid(user, user, user)
        _enter(message["cwd"])
        argv, env = message["argv"], message["env"]
        refused: OSError = FileNotFoundError(2, "command not found", argv[0])
        for path in _candidates(argv[0], env):
            try:
                os.execve(path, argv, env)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except PermissionError as error:
                refused = error
        raise refused
    except Exception as error:
        code = _code(error)
        _complain(error, 2)
    finally:
        os._exit(code)


def _stderr(message: wire.Message, fds: list[int]) -> int:
    """Where the command would have complained; our own, which nobody reads, where it has none."""
    numbers = message.get("at")
    if numbers is None:
        return fds[-1] if fds else 2
    return fds[numbers.index(2)] if 2 in numbers else 2


def _lifted(fds: list[int]) -> list[int]:
    """Copies where no number is that the command is to have them at."""
    return [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for fd in fds]


def _streams(fds: list[int]) -> Iterable[tuple[int, int]]:
    """Which standard stream each descriptor is: two are output and error, none leaves all at our /dev/null."""
    return enumerate(fds, 3 - len(fds)) if fds else ()


def _enter(cwd: str) -> None:
    try:
        os.chdir(cwd)
    except OSError as error:
        # Not FileNotFoundError: that means the command, and 127.
        raise PermissionError(errno.EACCES, f"cannot be entered ({error.strerror})", cwd) from None


def _candidates(name: str, env: dict[str, str]) -> list[str]:
    if "/" in name:
        return [name]
    paths = [f"{directory or '.'}/{name}" for directory in env.get("PATH", "/usr/bin:/bin").split(":")]
    return [path for path in paths if os.access(path, os.F_OK)]  # an attempt to start costs twenty times as much


def _code(error: Exception) -> int:
    return EXIT_NOT_FOUND if isinstance(error, (FileNotFoundError, NotADirectoryError)) else EXIT_NOT_RUN


def _complain(error: Exception, fd: int) -> None:
    if not isinstance(error, OSError):
        text = f"cannot be run: {error}"
    elif error.errno == errno.EAGAIN:
        text = "cannot be started: the sandbox has all the processes its limit allows"
    else:
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    try:
        os.write(fd, f"woodshed: {text}\n".encode(errors="backslashreplace"))
    except OSError:
        pass  # nobody reads it
