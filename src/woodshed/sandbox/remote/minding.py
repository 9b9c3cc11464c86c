"""What no cgroup of a container holds: the disk limit, looked at while commands run, and the wall time."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from woodshed.errors import SandboxDied
from woodshed.sandbox.native import disk
from woodshed.sandbox.native.link import Link, World

_EVERY_S = 0.15
_SHARE, _LONGEST_S = 5, 1.0
"""A look is followed by five times its own length of peace, but no more than this."""
_SLACK_BYTES, _SLACK_FILES = 1 << 20, 16


class Minder:
    """Watches one box as long as something runs in it. PID 1 counts; what is over a limit is ended."""

    def __init__(self, world: World, link: Link) -> None:
        self._world, self._link = world, link
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._allowed = (0, 0)
        self._settling = False
        self._wall: asyncio.TimerHandle | None = None
        link.busy = self._busy

    def begin(self) -> None:
        """The box is ready: its wall time begins."""
        if (wall_s := self._world.limits.wall_s) is not None:
            self._wall = self._loop.call_later(
                wall_s, self._link.doom, f"its wall time of {wall_s:g} s is over (limits.wall_s)")

    async def close(self) -> None:
        """Watch no more. Idempotent."""
        if self._wall is not None:
            self._wall.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _busy(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._watch())

    async def _watch(self) -> None:
        with suppress(SandboxDied):
            processes = 1
            pause = _EVERY_S
            while self._link.running or processes:
                await asyncio.sleep(pause)
                started = time.monotonic()
                told, _ = await self._link.request({"op": "measure"})
                if "bytes" not in told:
                    continue
                processes = int(told["processes"])
                self._judge(int(told["bytes"]), int(told["files"]))
                self._link.account.counted(disk.Used(int(told["bytes"]), int(told["files"])), int(told["memory"]))
                pause = min(_LONGEST_S, max(_EVERY_S, _SHARE * (time.monotonic() - started)))

    def _judge(self, used: int, files: int) -> None:
        limits = self._world.limits
        bound = (max(limits.disk_mb << 20, self._allowed[0]), max(limits.files, self._allowed[1]))
        hits = tuple(name for name, has, most, slack in (
            ("disk_mb", used, bound[0], _SLACK_BYTES), ("files", files, bound[1], _SLACK_FILES)) if has > most + slack)
        if self._settling:  # what the killed ones wrote last is no new offence
            self._settling = False
            self._allowed = (max(self._allowed[0], used), max(self._allowed[1], files))
        elif hits:
            self._allowed, self._settling = (used, files), True
            self._strike(hits)
        else:
            self._allowed = (min(self._allowed[0], used), min(self._allowed[1], files))

    def _strike(self, hits: tuple[str, ...]) -> None:
        """End every command: which of them wrote cannot be told from here."""
        for told in self._link.running.values():
            told += [hit for hit in hits if hit not in told]
        if not self._link.running:
            self._link.end({"op": "kill_all"})
        for ident in list(self._link.running):
            self._link.end({"op": "kill", "target": ident})
