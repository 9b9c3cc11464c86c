"""Who holds native sandboxes, who makes them and their first processes are killed at any moment: nothing is left.

No process, no mount, no control group; and of a killed holder the next one sweeps the folder.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from woodshed.errors import EnvironmentFault, SandboxDied
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.images import Images
from woodshed.sandbox.native import cgroups
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.places import Place, sweep

FAMILIES = (18,)
"""Of attacks, which these tests stand for: docs/threat-model.md."""

# Makes, uses and closes boxes until it is killed, or told to end in order (SIGUSR1); says each box's pid.
HOLDER = r"""
import asyncio, signal, sys
from pathlib import Path
from woodshed.errors import EnvironmentFault, SandboxDied
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.native.engine import NativeEngine

async def one(engine, policy, over):
    while not over.is_set():
        try:
            box = await engine.create(EnvironmentSpec(), policy)
            print(box.pid, flush=True)
            await box.start("trap '' TERM HUP INT; setsid sleep " + sys.argv[2] + " & sleep " + sys.argv[2])
            await box.exec("mkdir -p d/d; touch d/d/f; chmod 0 d/d")
            await box.close()
        except (EnvironmentFault, SandboxDied):  # what made it, or itself, was killed
            await asyncio.sleep(0.01)

async def main():
    engine, over = NativeEngine(Path(sys.argv[1])), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, over.set)
    policy = SandboxPolicy(limits=Limits(memory_mb=64))
    await asyncio.gather(*(one(engine, policy, over) for _ in range(3)))
    await engine.close()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def home(shed_home: Path) -> Path:
    """A home whose image is made, so that a holder's time goes into boxes."""
    Images(shed_home).prepare(EnvironmentSpec())
    return shed_home


@pytest.fixture
def mark() -> str:
    """An argument of sleep that nobody else uses."""
    return f"{os.getpid()}.{random.randrange(10**6):06}"


def sleepers(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes() and b"python" not in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def until_gone(mark: str) -> list[str]:
    """What still runs when nothing more ends; the kernel needs a moment after a kill."""
    for _ in range(1000):
        if not sleepers(mark):
            return []
        time.sleep(0.02)
    return sleepers(mark)


class Holder:
    """A holder at work, what it is made of, and what there is to be found of it."""

    def __init__(self, home: Path, mark: str, *, code: str = HOLDER) -> None:
        self.home, self.mark = home, mark
        with tempfile.TemporaryFile(dir=home.parent) as said:
            self.process = subprocess.Popen([sys.executable, "-c", code, str(home), mark], stdout=said)
            while os.fstat(said.fileno()).st_size == 0:
                assert self.process.poll() is None
                time.sleep(0.002)
        prefix = f"{self.process.pid}-"
        self.instance = next(path.name for path in (home / "sandboxes").iterdir() if path.name.startswith(prefix))

    def server(self) -> int | None:
        """Its fork server; None in the moment where there is none."""
        return next(iter(named_boxes(self.process.pid)), None)

    def boxes(self) -> list[int]:
        """First processes of boxes whose maker lives."""
        server = self.server()
        return named_boxes(server) if server is not None else []

    def kill(self, what: str) -> None:
        """SIGKILL to the ``manager``, the ``server`` or a ``box``; where it has none now, to nobody."""
        server = self.server()
        pids = {"manager": [self.process.pid], "server": [server] if server else [], "box": self.boxes()}[what]
        if pids:
            with suppress(ProcessLookupError):
                os.kill(random.choice(pids), signal.SIGKILL)

    def swept(self) -> bool:
        """Whether a sweep finds its folder. What was just being started may hold its lock for a moment."""
        for _ in range(200):
            if self.instance in sweep(self.home):
                return True
            time.sleep(0.01)
        return False

    def wait(self) -> int:
        """Its exit status, once it ended."""
        return self.process.wait(60)

    def left(self, *, folder: bool) -> list[str]:
        """What there is of it though it is gone: processes, mounts, control groups, and with ``folder`` that."""
        found = [f"process {pid}" for pid in until_gone(self.mark)]
        found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(self.home) in line]
        parents = {*cgroups.control().parents.values()}
        found += [str(path) for parent in parents for path in parent.glob(f"{self.instance}*")]
        if folder:
            found += [str(path) for path in (self.home / "sandboxes").glob(f"{self.instance}*")]
        return found


def named_boxes(parent: int) -> list[int]:
    """Children of ``parent`` that are called like ours."""
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "woodshed-box\n"]
    except OSError:
        return []


def torment(home: Path, mark: str, cycles: int) -> int:
    """Kill this and that ``cycles`` times, each at a random moment; how often commands ran when the manager died."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # shown where it fails
    chance, holder, alive = random.Random(seed), Holder(home, mark), 0
    for cycle in range(cycles):
        time.sleep(chance.random() / 20)
        what = chance.choice(("manager", "server", "box")) if cycle else "manager"
        while not cycle and not sleepers(mark):  # the first time in the midst of a command, whatever chance says
            time.sleep(0.01)
        if what == "manager":
            alive += bool(sleepers(mark))
        holder.kill(what)
        if what == "manager":
            holder.wait()
            assert holder.swept()
            assert holder.left(folder=True) == []
            holder = Holder(home, mark)
    holder.process.send_signal(signal.SIGUSR1)
    assert holder.wait() == 0
    assert holder.left(folder=True) == [], "an engine that ends in order leaves nothing to be swept"
    return alive


def test_nothing_is_left_whatever_is_killed(home: Path, mark: str) -> None:
    """SIGKILL of manager, fork server or a first process, forty times at random moments: nothing of them is left."""
    assert torment(home, mark, 40)


@pytest.mark.slow
def test_nothing_is_left_whatever_is_killed_hundreds_of_times(home: Path, mark: str) -> None:
    """The same five hundred times."""
    assert torment(home, mark, 500)


def test_a_killed_manager_takes_its_boxes_along(home: Path, mark: str) -> None:
    """SIGKILL while commands run that ignore what can be ignored: no process, mount or cgroup remains unswept."""
    holder = Holder(home, mark)
    while not sleepers(mark):  # there is something to leave behind
        time.sleep(0.01)
    holder.kill("manager")
    holder.wait()
    assert until_gone(mark) == []
    assert str(home) not in Path("/proc/self/mounts").read_text()
    assert holder.swept()
    assert holder.left(folder=True) == []


DEAF = r"""
from outer import Patch, weakened
with weakened((Patch("                if message is None:\n                    os._exit(0)\n",
                     "                if message is None:\n                    poller.unregister(channel)\n"
                     "                    continue\n"),), Path(sys.argv[1])):
    asyncio.run(main())
"""


def test_without_the_defence_boxes_outlive_their_manager(home: Path, mark: str) -> None:
    """The control: a first process that does not notice its engine's end goes on, and so do its commands."""
    lines = HOLDER.replace("\nasyncio.run(main())\n", DEAF).replace(
        "await box.close()", "Path(sys.argv[1], 'settled').touch(); await asyncio.sleep(600)")
    holder = Holder(home, mark, code=f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[1])!r})\n{lines}")
    while not (home / "settled").exists():  # a command that ends later would find nobody to tell, and end its box
        time.sleep(0.01)
    boxes = holder.boxes()
    holder.kill("manager")
    holder.wait()
    time.sleep(0.3)
    left = sleepers(mark)
    for pid in {*boxes, *(int(pid) for pid in left)}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left
    assert until_gone(mark) == []
    sweep(home)


async def test_a_killed_fork_server_harms_no_live_box(home: Path) -> None:
    """Boxes outlive the process that made them, and the next create starts a new one."""
    engine = NativeEngine(home)
    box = await engine.create(EnvironmentSpec(), SandboxPolicy())
    os.kill(_fork_server(), signal.SIGKILL)
    assert (await box.exec("echo well")).stdout == b"well\n"
    for _ in range(3):  # the first may still meet the dead one
        try:
            other = await engine.create(EnvironmentSpec(), SandboxPolicy())
            break
        except EnvironmentFault:
            await asyncio.sleep(0.05)
    assert (await other.exec("echo new")).stdout == b"new\n"
    await engine.close()


def _fork_server() -> int:
    """Our child that is called like one."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return next(int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "woodshed-box\n")


async def test_a_killed_box_is_said_to_have_died(home: Path) -> None:
    """When PID 1 of a box is killed from outside, its calls raise SandboxDied, and others are unharmed."""
    engine = NativeEngine(home)
    box, other = [await engine.create(EnvironmentSpec(), SandboxPolicy()) for _ in range(2)]
    running = asyncio.ensure_future(box.exec("sleep 600"))
    await asyncio.sleep(0.05)
    os.kill(box.pid, signal.SIGKILL)
    with pytest.raises(SandboxDied):
        await running
    with pytest.raises(SandboxDied):
        await box.exec("true")
    await box.close()
    assert (await other.exec("echo well")).stdout == b"well\n"
    await engine.close()


async def test_cancelled_work_leaves_nothing(home: Path, mark: str) -> None:
    """A create or exec cancelled at any moment leaves no box, and a cancelled exec's processes end."""
    engine = NativeEngine(home)
    box = await engine.create(EnvironmentSpec(), SandboxPolicy())
    for pause_s in (0.0, 0.001, 0.003, 0.006, 0.01, 0.02):
        making = asyncio.ensure_future(engine.create(EnvironmentSpec(), SandboxPolicy()))
        running = asyncio.ensure_future(box.exec(f"setsid sleep {mark} & sleep {mark}"))
        await asyncio.sleep(pause_s)
        for task in (making, running):
            task.cancel()
        made, _ = await asyncio.gather(making, running, return_exceptions=True)
        if not isinstance(made, BaseException):
            await made.close()
    await box.exec("true")  # answered after the kills before it
    assert await asyncio.to_thread(until_gone, mark) == []
    folders = list((home / "sandboxes").glob("*/*/u"))
    assert len(folders) == 1, folders
    await engine.close()


def test_a_sweep_keeps_to_the_dead(tmp_path: Path) -> None:
    """Folders whose lock is held stay; those without a holder go, whatever lies in them."""
    live = Place(tmp_path)
    live.box("1")
    for name in ("dead", "half-made"):
        (tmp_path / "sandboxes" / name / "7" / "u").mkdir(parents=True)
    (tmp_path / "sandboxes" / "dead" / "lock").touch()
    (tmp_path / "sandboxes" / "dead" / "7" / "u" / "out").symlink_to(tmp_path)
    locked = tmp_path / "sandboxes" / "dead" / "7" / "u" / "closed"
    (locked / "in").mkdir(parents=True)
    locked.chmod(0)
    assert sorted(sweep(tmp_path)) == ["dead", "half-made"]
    assert [path.name for path in (tmp_path / "sandboxes").iterdir()] == [live.instance]
    live.close()
    live.close()
    assert sweep(tmp_path) == []


def test_one_instance_has_one_engine(tmp_path: Path) -> None:
    """A second engine of the same instance name is refused while the first lives."""
    first = Place(tmp_path, "same")
    with pytest.raises(EnvironmentFault, match="in use"):
        Place(tmp_path, "same")
    first.close()
    Place(tmp_path, "same").close()


async def test_a_host_that_gives_nothing_more_is_a_fault(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the disk or the descriptors used up, create raises EnvironmentFault and leaves nothing; then it works."""
    engine = NativeEngine(home)
    box = await engine.create(EnvironmentSpec(), SandboxPolicy())
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    for spare in range(8):
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, limit[1]))
        try:
            made = await engine.create(EnvironmentSpec(), SandboxPolicy())
        except EnvironmentFault:
            continue
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        await made.close()
    monkeypatch.setattr(Place, "box", _full)
    with pytest.raises(EnvironmentFault, match="No space"):
        await engine.create(EnvironmentSpec(), SandboxPolicy())
    monkeypatch.undo()
    assert (await box.exec("echo well")).stdout == b"well\n"
    boxes = [*(home / "sandboxes").glob("*/*/u")]
    for _ in range(100):  # a box that failed to open is cleared away behind the answer
        if len(boxes) == 1:
            break
        await asyncio.sleep(0.05)
        boxes = [*(home / "sandboxes").glob("*/*/u")]
    assert len(boxes) == 1
    await (await engine.create(EnvironmentSpec(), SandboxPolicy())).close()
    await engine.close()


def _full(place: Place, name: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
