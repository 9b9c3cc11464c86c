"""Holds boxes to the limits that no mechanism of the kernel holds: looks while their commands run, one timer an engine.

- **Disk** (``disk_mb``, ``files``): a look at the host's free space every 50 ms tells whether a box can have come near
  its limit; only then its changes are counted. Over the limit, what wrote is killed (the command with its tree; then,
  if something goes on writing, everything), and the sandbox stays, so that files can be deleted. As long as it is over,
  whatever makes it larger is killed as well.
- **The host's reserve**: where the host has almost no room left, a box that is within its limit and writes is ended.
  That is the environment's fault: SandboxDied says so, and its attempt is tried again.
- **Memory and CPU** (``memory_mb``, ``cpus``) where no cgroup holds them: the largest process of a box over its memory
  is killed; one that used more than its time stands still (SIGSTOP) until it is even again.
- **Wall time** (``wall_s``): the sandbox ends.

Nothing is looked at while nothing runs. What is missed between two looks: ``docs/limits.md``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from woodshed.errors import SandboxDied, UsageError
from woodshed.sandbox.native import disk, processes
from woodshed.sandbox.native.disk import Room, Used
from woodshed.sandbox.native.link import Link, World, children

_LOOK_S, _SOON_S = 0.05, 0.01
"""Between two looks, and where the room falls fast."""
_ALL_S = 0.5
"""All boxes are looked at this often, whatever the room; nothing is counted for that."""
_ANYWAY_S, _CALM_S = 2.0, 64.0
"""How long a box runs until it is counted without a sign; twice as long each time nothing was found, up to this."""
_WALKS = 2
_SHARE, _CALM_SHARE = 4, 50
"""Counting a box again waits this many times as long as counting took: when there is a sign, and when there is none."""
_STRIKE_S = 5.0
_MUCH = 8
"""Who wrote an eighth of what the busiest command wrote is one of those that filled the disk."""
_RESERVE_BYTES, _RESERVE_FILES, _RESERVE_SHARE = 1 << 30, 10_000, 20
"""The host keeps this, or a twentieth of its disk where that is less."""
_WRITER_BYTES, _WRITER_FILES = 1 << 20, 256
"""A box that grew by less between two looks is not what fills the host's disk."""
_DOOM_S = 1.0
_BURST_S, _LONGEST_PAUSE_S = 0.1, 1.0


@dataclass(slots=True)
class Watched:
    """One box and what was last seen of it."""

    world: World
    link: Link
    used: Used | None = None
    room: Room | None = None
    """When it was last counted, or began to run."""
    unseen: tuple[int, int] = (0, 0)
    """Bytes and files that the host lost while it ran, since it was last counted and before ``room``."""
    since: float = 0.0
    took_s: float = 0.0
    anyway_s: float = _ANYWAY_S
    allowed: tuple[int, int] = (0, 0)
    """Bytes and files it was left with after a limit was reached."""
    written: dict[int, int] = field(default_factory=dict)
    """Bytes by process, when it was last counted."""
    writers: dict[int, int] = field(default_factory=dict)
    """Bytes by command (a mark; 0 for unknown), between the last two counts."""
    struck: set[int] = field(default_factory=set)
    struck_at: float = float("-inf")
    settling: bool = False
    looking: bool = False
    polling: bool = False
    paused: bool = False
    cpu: tuple[float, float] | None = None
    """Seconds used, and when that was seen."""
    tokens_s: float = 0.0
    peak_bytes: int = 0
    """Of memory, where that is polled."""
    wall: asyncio.TimerHandle | None = None

    @property
    def bounds(self) -> tuple[int, int]:
        """Bytes and files it may have now."""
        limits = self.world.limits
        return max(limits.disk_mb << 20, self.allowed[0]), max(limits.files, self.allowed[1])

    @property
    def slack(self) -> tuple[int, int]:
        """What it may have beyond: directories take room, too, and overlayfs has entries of its own."""
        limits = self.world.limits
        return min(max((limits.disk_mb << 20) // 16, 64 << 10), 4 << 20), limits.files // 64 + 32

    @property
    def polls_memory(self) -> bool:
        """No cgroup holds its memory limit."""
        return self.world.limits.memory_mb is not None and not self.world.groups.holds("memory")

    @property
    def polls_cpu(self) -> bool:
        """No cgroup holds its CPU limit."""
        return self.world.limits.cpus is not None and not self.world.groups.holds("cpu")

    def sign(self, room: Room) -> float:
        """How near the host's loss is to what would make a count due: 1 and more is due."""
        if self.settling:
            return 1.0
        return max(loss / near for loss, near in zip(self._lost(room), self.near(), strict=True))

    def near(self) -> tuple[int, int]:
        """Bytes and files after which it is counted again: half of what it has left, so that few counts lead there."""
        had = (self.used.bytes, self.used.files) if self.used else (0, 0)
        bytes_, files = (max((bound - has) // 2, slack)
                         for bound, has, slack in zip(self.bounds, had, self.slack, strict=True))
        return bytes_, files

    def left(self, room: Room) -> tuple[int, int]:
        """What the host may lose before it is due."""
        lost, near = self._lost(room), self.near()
        return max(0, near[0] - lost[0]), max(0, near[1] - lost[1])

    def due(self, room: Room, now: float, *, low: bool) -> bool:
        """Whether it is to be counted now; ``low`` is the host's room."""
        if low or self.sign(room) >= 1.0:
            return now - self.since >= _SHARE * self.took_s
        return now - self.since >= max(self.anyway_s, _CALM_SHARE * self.took_s)

    def rest(self, room: Room) -> None:
        """Nothing of it runs: what the host loses from now on is not its doing."""
        self.unseen, self.room = self._lost(room), None

    def _lost(self, room: Room) -> tuple[int, int]:
        before = self.room or room
        files = (before.files or 0) - (room.files or 0)
        return max(0, self.unseen[0] + before.bytes - room.bytes), max(0, self.unseen[1] + files)

    def over(self, used: Used) -> tuple[str, ...]:
        """The limits that ``used`` is beyond."""
        bounds, slack = self.bounds, self.slack
        hits = ("disk_mb",) if used.bytes > bounds[0] + slack[0] else ()
        return hits + (("files",) if not used.whole or used.files > bounds[1] + slack[1] else ())

    def measure(self) -> Used:
        """Count. Blocking."""
        at_most = self.bounds[1] + self.slack[1] + 1
        found = disk.changes(self.world.folder, at_most=at_most)
        below = processes.descendants(self.link.pid)
        self._note_writers(below)
        with suppress(OSError):
            open_only = disk.nameless(below, disk.blocks(self.world.folder))
            return Used(found.bytes + open_only, found.files, found.whole)
        return found

    def _note_writers(self, below: list[int]) -> None:
        before, self.written = self.written, {pid: processes.disk_bytes(pid)[1] for pid in below}
        self.writers = {}
        for pid, written in self.written.items():
            if (new := written - before.get(pid, 0)) > 0:
                mark = processes.mark(pid)
                self.writers[mark] = self.writers.get(mark, 0) + new

    def culprits(self) -> set[int]:
        """Commands that wrote much of what came last; 0 among them stands for processes of no known one."""
        most = max(self.writers.values(), default=0)
        return {mark for mark, written in self.writers.items() if written * _MUCH >= most}

    def mark(self, hits: tuple[str, ...]) -> None:
        """Every command that runs is told which limits were reached."""
        for told in self.link.running.values():
            told += [hit for hit in hits if hit not in told]


class Guard:
    """Watches the boxes of one engine."""

    def __init__(self, home: Path, reserve: str = "") -> None:
        """``home`` lies on the disk the boxes fill. It keeps ``reserve`` MB; where empty, a gibibyte or 5 %.

        Raises UsageError where ``reserve`` is no number.
        """
        if reserve and not reserve.isdecimal():
            raise UsageError(f"{reserve!r} is no number of megabytes", field="WOODSHED_DISK_RESERVE_MB",
                             remedy="Set a whole number, 0 for no reserve, or nothing.")
        self._home, self._reserve = home, int(reserve) << 20 if reserve else None
        self._room: Room | None = None
        self._ticked: Room | None = None
        self._floor, self._next_s, self._fresh = (0, 0), 0.0, True
        """Room above which, and time before which, boxes need no look; unless something is new."""
        self._boxes: dict[str, Watched] = {}
        self._active: dict[str, Watched] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._walks = asyncio.Semaphore(_WALKS)
        self._doomed_at = float("-inf")

    def add(self, world: World, link: Link) -> None:
        """Watch a box from now on, until it is removed."""
        watched = self._boxes[world.id] = Watched(world, link)
        link.busy = partial(self._busy, world.id, watched)
        if (wall_s := world.limits.wall_s) is not None:
            watched.wall = asyncio.get_running_loop().call_later(
                wall_s, link.doom, f"its wall time of {wall_s:g} s is over (limits.wall_s)")

    def remove(self, ident: str) -> None:
        """Watch a box no longer; its account has what was seen of it. Idempotent."""
        self._active.pop(ident, None)
        watched = self._boxes.pop(ident, None)
        if watched is None:
            return
        watched.link.account.counted(watched.used, watched.peak_bytes)
        if watched.wall is not None:
            watched.wall.cancel()

    async def close(self) -> None:
        """Watch nothing any more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _busy(self, ident: str, watched: Watched) -> None:
        """Something starts in a box. On the hot path: a look at the clock and the disk at most every 50 ms."""
        if ident in self._active:
            return
        if self._timer is None:
            self._look_at_room()
            self._arm(_LOOK_S)
        self._active[ident], self._fresh = watched, True
        watched.room, watched.since, watched.cpu = self._room, time.monotonic(), None

    def _arm(self, after_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(after_s, self._tick)

    def _look_at_room(self) -> None:
        with suppress(OSError):
            self._room = disk.room(self._home)

    def _tick(self) -> None:
        self._timer = None
        before, now = self._ticked, time.monotonic()
        self._look_at_room()
        room = self._ticked = self._room
        after_s = _LOOK_S
        if room is not None and not self._calm(room, now):
            after_s = self._look_at_boxes(room, 0 if before is None else before.bytes - room.bytes, now)
        if self._active:
            self._arm(after_s)

    def _calm(self, room: Room, now: float) -> bool:
        """Whether no box can have come near a limit since all were looked at: many cost no more than one."""
        floor_bytes, floor_files = self._floor
        return (not self._fresh and now < self._next_s and room.bytes > floor_bytes
                and (room.files is None or room.files > floor_files))

    def _look_at_boxes(self, room: Room, falls: int, now: float) -> float:
        """Act on each that something runs in; seconds until the next tick."""
        low = self._low(room)
        after_s, busy = _LOOK_S, low
        least = (room.bytes, room.files or 0)
        for ident, watched in list(self._active.items()):
            if watched.link.dead:
                del self._active[ident]
                continue
            if (watched.polls_memory or watched.polls_cpu) and not watched.polling:
                watched.polling = True
                self._begin(self._poll(watched))
            if not watched.looking and watched.due(room, now, low=low):
                watched.looking = True
                self._begin(self._look(watched))
            elif not watched.looking and not watched.link.running and not children(watched.link.pid):
                watched.rest(room)
                del self._active[ident]
                continue
            left = watched.left(room)
            if watched.settling or (falls > 0 and left[0] < 2 * falls):
                after_s = _SOON_S
            busy = busy or watched.polling or watched.looking or watched.settling
            least = (min(least[0], left[0]), min(least[1], left[1]))
        self._floor = (room.bytes - least[0] // 2, (room.files or 0) - least[1] // 2)
        self._next_s, self._fresh = now + _ALL_S, busy
        return after_s

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _low(self, room: Room) -> bool:
        reserve = min(_RESERVE_BYTES, room.total_bytes // _RESERVE_SHARE) if self._reserve is None else self._reserve
        few = min(_RESERVE_FILES, room.total_files // _RESERVE_SHARE)
        return room.bytes < reserve or (room.files is not None and room.files < few)

    # -- disk ----------------------------------------------------------------------------------------------------------

    async def _look(self, watched: Watched) -> None:
        """Count one box, and act on it."""
        try:
            async with self._walks:
                self._look_at_room()
                room, started = self._room, time.monotonic()
                used = await asyncio.to_thread(watched.measure)
            watched.took_s = time.monotonic() - started
            before, watched.used = watched.used, used
            watched.anyway_s = min(_CALM_S, 2 * watched.anyway_s) if used == before else _ANYWAY_S
            watched.room, watched.since, watched.unseen = room, started, (0, 0)
            self._judge(watched, used)
            if room is not None and self._low(room) and before is not None and not watched.over(used):
                self._spare(watched, room, used.bytes - before.bytes, used.files - before.files)
        finally:
            watched.looking, self._fresh = False, True

    def _judge(self, watched: Watched, used: Used) -> None:
        hits = watched.over(used)
        if watched.settling:  # what the killed ones wrote last is no new offence
            watched.settling = False
            watched.allowed = (max(watched.allowed[0], used.bytes), max(watched.allowed[1], used.files))
        elif hits:
            watched.allowed, watched.settling = (used.bytes, used.files), True
            self._strike(watched, hits)
        else:
            watched.allowed = (min(watched.allowed[0], used.bytes), min(watched.allowed[1], used.files))

    def _strike(self, watched: Watched, hits: tuple[str, ...]) -> None:
        """Kill what wrote; where that cannot be told, all commands; where that was of no use, everything."""
        watched.mark(hits)
        now, culprits = time.monotonic(), watched.culprits()
        if not culprits or 0 in culprits:
            culprits = set(watched.link.running)
        again = now - watched.struck_at < _STRIKE_S and culprits <= watched.struck
        watched.struck_at, watched.struck = now, culprits
        with suppress(SandboxDied):
            if again or not culprits:
                watched.link.end({"op": "kill_all"})
            for mark in culprits if not again else ():
                shell = next((ident for ident, marks in watched.link.shells.items() if mark in marks), 0)
                watched.link.end({"op": "kill", "target": mark, "spare": shell})

    def _spare(self, watched: Watched, room: Room, grew_bytes: int, grew_files: int) -> None:
        """The host has no room for what this box may have: it ends, one at a time, for that may be enough."""
        now = time.monotonic()
        writes = grew_bytes > _WRITER_BYTES or grew_files > _WRITER_FILES
        if writes and now - self._doomed_at > _DOOM_S:
            self._doomed_at = now
            watched.link.doom(f"the host's disk is nearly full ({room.bytes >> 20} MB left below {self._home}), "
                              "and this sandbox, within its own limit, was filling it")

    # -- memory and CPU without cgroups --------------------------------------------------------------------------------

    async def _poll(self, watched: Watched) -> None:
        try:
            below, found, files = await asyncio.to_thread(_sample, watched.link.pid)
            limits = watched.world.limits
            if watched.polls_cpu and limits.cpus is not None:
                self._pace(watched, limits.cpus, found.cpu_s)
            if watched.polls_memory and limits.memory_mb is not None:
                bound = limits.memory_mb << 20
                watched.peak_bytes = max(watched.peak_bytes, min(bound, found.resident_bytes + files))
                if found.resident_bytes + files > bound and await asyncio.to_thread(
                        _shrink, watched.link.pid, below, files, bound):
                    watched.mark(("memory_mb",))
        finally:
            watched.polling = False

    def _pace(self, watched: Watched, cpus: float, used_s: float) -> None:
        """Like the kernel's quota, a tenth of a second at a time: who overdrew stands still until it is even."""
        now = time.monotonic()
        if watched.cpu is not None:
            gained = cpus * (now - watched.cpu[1]) - (used_s - watched.cpu[0])
            watched.tokens_s = min(cpus * _BURST_S, watched.tokens_s + gained)
            if watched.tokens_s < 0 and not watched.paused:
                self._pause(watched, min(_LONGEST_PAUSE_S, -watched.tokens_s / cpus))
        watched.cpu = (used_s, now)

    def _pause(self, watched: Watched, for_s: float) -> None:
        def resume() -> None:
            watched.paused = False
            watched.link.send({"op": "resume"})

        watched.paused = True
        watched.link.send({"op": "pause"})
        asyncio.get_running_loop().call_later(for_s, resume)


def _sample(first: int) -> tuple[list[int], processes.Sum, int]:
    below = processes.descendants(first)
    return below, processes.total(first, below), processes.memory_files_bytes(below)


def _shrink(first: int, below: list[int], files: int, bound: int) -> bool:
    """Kill the largest process of a box that is over ``bound``, shared pages counted once; whether it was. Blocking."""
    shares = {pid: processes.shares(pid) for pid in below}
    own = sum(share[0] for share in shares.values())
    # Memory files are counted where they lie or where they are mapped: the larger is nearer the truth than the sum.
    if own + max(files, sum(share[1] for share in shares.values())) <= bound:
        return False
    processes.kill(max(shares, key=lambda pid: sum(shares[pid])), first)
    return True
