"""Providers of workers: processes on this machine, or whatever a command of the user's scales."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from woodshed.errors import EnvironmentFault, UsageError
from woodshed.model.counted import counted
from woodshed.store.queue import Worker

Tell = Callable[[str], None]

_LONGEST_S = 60.0
"""Between two starts, where workers end with an error again and again."""
_SOON_S = 30.0
"""Who ends with an error so soon after its start would again."""
_MOST_OUTPUT = 65_536
_TOLD = 500
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|DATABASE_URL|_DSN\b", re.IGNORECASE)


class Local:
    """Worker processes on this machine, children of the controller. ``command`` starts one; it drains on SIGTERM."""

    retell_s = 0.0

    def __init__(self, command: Sequence[str], *, slots: float, tell: Tell) -> None:
        self.slots = slots
        self._command, self._tell = list(command), tell
        self._all: list[asyncio.subprocess.Process] = []
        self._draining: set[int] = set()
        self._started: dict[int, float] = {}
        self._wait_s, self._not_before = 1.0, 0.0

    async def scale(self, wanted: int, workers: Sequence[Worker]) -> None:
        """Start what is missing; drain what is too many, those with the least at work first."""
        self._bury()
        working = [one for one in self._all if one.pid not in self._draining]
        busy = {one.pid: one.busy for one in workers}
        working.sort(key=lambda one: (busy.get(one.pid, 0), -self._started[one.pid]))
        for process in working[:max(0, len(working) - wanted)]:
            self._draining.add(process.pid)
            _signal(process, signal.SIGTERM)
        if len(working) < wanted and time.monotonic() < self._not_before:
            raise EnvironmentFault("workers end with an error as soon as they are started; none is started for now")
        for _ in range(wanted - len(working)):
            await self._start()

    async def _start(self) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is ours to pass on
            )
        except OSError as error:
            raise EnvironmentFault(f"no worker can be started: {error.strerror}") from error
        self._all.append(process)
        self._started[process.pid] = time.monotonic()

    def _bury(self) -> None:
        """Forget who has ended; errors are told, and soon ones slow starting down."""
        for process in [one for one in self._all if one.returncode is not None]:
            self._all.remove(process)
            self._draining.discard(process.pid)
            lived_s = time.monotonic() - self._started.pop(process.pid)
            if process.returncode:
                self._tell(f"worker {process.pid} ended with code {process.returncode}")
                if lived_s < _SOON_S:
                    self._not_before = time.monotonic() + self._wait_s
                    self._wait_s = min(2 * self._wait_s, _LONGEST_S)
            else:
                self._wait_s = 1.0

    async def close(self) -> None:
        """All drain: what they have at work goes on to its end."""
        for process in self._all:
            if process.pid not in self._draining:
                self._draining.add(process.pid)
                _signal(process, signal.SIGTERM)
        if left := [one for one in self._all if one.returncode is None]:
            self._tell(f"draining: {counted(len(left), 'worker')} (a second signal stops them)")
        await asyncio.gather(*(one.wait() for one in self._all))

    def hurry(self) -> None:
        """A second SIGTERM to each: what runs is stopped, and free for others."""
        for process in self._all:
            _signal(process, signal.SIGTERM)


class Command:
    """A command of the user's, run with the wanted number whenever that changes. It has ``timeout_s``.

    ``{wanted}`` and ``{pool}`` stand for themselves in its words; ``WOODSHED_WANTED`` and ``WOODSHED_POOL`` are in its
    environment, from which everything is left out that looks like a secret and is not ``passed`` by name. No shell
    reads it. Raises UsageError for a command that cannot be.
    """

    retell_s = 60.0

    def __init__(
        self, command: str, *, pool: str, slots: float, timeout_s: float = 60.0, passed: Sequence[str] = ()
    ) -> None:
        self.slots = slots
        self._pool, self._timeout_s, self._passed = pool, timeout_s, frozenset(passed)
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"it cannot be read: {error}", field="--command", remedy="Mend its quotes.") from None
        if not self._words:
            raise UsageError("there is none", field="--command", remedy="Say what scales, with {wanted} in it.")

    async def scale(self, wanted: int, workers: Sequence[Worker]) -> None:
        """Run it to its end. Raises EnvironmentFault with the end of its output when it fails, or takes too long."""
        values = {"wanted": str(wanted), "pool": self._pool}
        argv = [_filled(word, values) for word in self._words]
        env = clean(os.environ, self._passed) | {"WOODSHED_WANTED": str(wanted), "WOODSHED_POOL": self._pool}
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT, start_new_session=True,
            )
        except OSError as error:
            raise EnvironmentFault(f"{self._words[0]} cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(self._timeout_s):
                said = await _tail(process)
                code = await process.wait()
        except TimeoutError:
            raise EnvironmentFault(f"{self._words[0]} took more than {self._timeout_s:g} s") from None
        finally:
            await _end(process)
        if code:
            raise EnvironmentFault(f"{self._words[0]} failed with code {code}: {said or 'it said nothing'}")

    async def close(self) -> None:
        """What it scaled stays as it is: it is not ours to end."""

    def hurry(self) -> None:
        """Nothing of it runs here."""


def clean(env: Mapping[str, str], passed: frozenset[str]) -> dict[str, str]:
    """Without what looks like a secret, by its name, or an address with a password in it; ``passed`` stay."""
    return {name: value for name, value in env.items()
            if name in passed or not (_SECRET.search(name) or re.search(r"://[^/\s@]*:[^/\s@]*@", value))}


def _filled(word: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), word)


async def _tail(process: asyncio.subprocess.Process) -> str:
    """The end of what it says; the rest is read and forgotten."""
    assert process.stdout is not None
    kept = b""
    while data := await process.stdout.read(_MOST_OUTPUT):
        kept = (kept + data)[-4 * _TOLD:]
    return kept.decode("utf-8", "replace").strip()[-_TOLD:]


async def _end(process: asyncio.subprocess.Process) -> None:
    """It and all it has started in its session are gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(number)
