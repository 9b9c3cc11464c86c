"""Commands of native sandboxes at their edges: many, fed, flooded, cancelled, spooled; no descriptor is lost."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from woodshed.errors import SandboxDied, UsageError
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.images import Images
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.collected import Collected
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.spool import Spools
from woodshed.sandbox.native.turns import Turns

SPEC = EnvironmentSpec()


@pytest.fixture
async def engine(shed_home: Path, images: Images) -> AsyncIterator[NativeEngine]:
    made = NativeEngine(shed_home, images=images)
    yield made
    await made.close()


@pytest.fixture
async def box(engine: NativeEngine) -> NativeSandbox:
    return await engine.create(SPEC, SandboxPolicy())


def open_fds() -> set[int]:
    """Descriptors of this process."""
    gc.collect()
    return {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208 (iterdir has one more open for longer)


async def pids(box: NativeSandbox) -> int:
    """Processes of a box, its first included."""
    return sum(entry.name.isdigit() for entry in await box.list("/proc"))


async def alone(box: NativeSandbox) -> None:
    """Nothing but its first process runs, sooner or later: what was killed is reaped a moment later."""
    while await pids(box) > 1:  # noqa: ASYNC110 (no event inside tells)
        await asyncio.sleep(0.01)


# -- many at once ------------------------------------------------------------------------------------------------------


async def test_a_thousand_commands_at_once_all_answer(engine: NativeEngine) -> None:
    """A thousand commands of one box, begun together, each give their own answer, and no descriptor is left."""
    box = await engine.create(SPEC, SandboxPolicy(limits=Limits(pids=4096)))
    await box.exec("true")
    before = open_fds()
    results = await asyncio.gather(*(box.exec(["echo", str(number)]) for number in range(1000)))
    assert [int(result.stdout) for result in results] == list(range(1000))
    assert open_fds() == before


@pytest.fixture(params=[0, 700], ids=["few open", "many open"])
def few_files(request: pytest.FixtureRequest) -> Iterator[None]:
    """This process may open hardly more files than it has open, be those few or many."""
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(request.param)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_fds()) + 60, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for fd in held:
        os.close(fd)


@pytest.mark.usefixtures("few_files")
async def test_commands_queue_where_descriptors_are_few(shed_home: Path, images: Images) -> None:
    """With room for a few dozen descriptors three hundred commands wait for their turn instead of failing."""
    engine = NativeEngine(shed_home, images=images)
    try:
        box = await engine.create(SPEC, SandboxPolicy())
        results = await asyncio.gather(*(box.exec(f"sleep 0.01; echo {number}") for number in range(300)))
        assert [int(result.stdout) for result in results] == list(range(300))
    finally:
        await engine.close()


async def test_turns_are_taken_in_order_and_none_is_lost() -> None:
    """Who waits is served first come first served; one that gives up, even just after its turn came, loses none."""
    turns, served = Turns(1), []
    assert turns.take()
    assert not turns.take()

    async def one(number: int) -> None:
        await turns.wait()
        served.append(number)
        turns.give_back()

    waiting = [asyncio.create_task(one(number)) for number in range(4)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    turns.give_back()
    waiting[0].cancel()  # its turn has come, but it has not run
    await asyncio.gather(*waiting, return_exceptions=True)
    assert served == [2, 3]
    assert turns.take()


async def test_who_falls_short_tries_again_after_another() -> None:
    """Who has a turn but no descriptor goes next when another comes back, before those who wait; alone it cannot."""
    turns, served = Turns(3), []
    assert [turns.take() for _ in range(4)] == [True, True, True, False]

    async def short(name: str) -> None:
        assert await turns.fell_short()
        served.append(name)
        turns.give_back()

    async def late() -> None:
        await turns.wait()
        served.append("late")
        turns.give_back()

    tasks = [asyncio.create_task(work) for work in (late(), short("first"), short("second"))]
    await asyncio.sleep(0)
    assert not await turns.fell_short()  # the other two turns are held by those who fell short
    turns.give_back()
    await asyncio.gather(*tasks)
    assert served == ["first", "second", "late"]
    assert [turns.take() for _ in range(4)] == [True, True, True, False]


async def test_one_that_falls_short_and_is_cancelled_lets_the_next_one_go() -> None:
    """A turn given back passes over those that were cancelled while they were short of descriptors."""
    turns = Turns(3)
    assert all(turns.take() for _ in range(3))
    gone, stays = (asyncio.create_task(turns.fell_short()) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    turns.give_back()
    assert await stays
    assert gone.cancelled() or (await asyncio.wait([gone]))[0].pop().cancelled()


# -- what is given to a command ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [200_000, 2_000_000])
async def test_arguments_beyond_the_kernels_bounds_are_answered(box: NativeSandbox, size: int) -> None:
    """One argument or variable of more than 128 KiB, or too many, is 126 with the reason; the box goes on."""
    for result in (
        await box.exec(["true", "x" * size]), await box.exec("true", env={"LARGE": "x" * size}),
        await box.exec(["true", *["y" * 100] * (size // 10)]),
    ):
        if result.exit_code == 0:
            assert size == 200_000  # many small ones: within a quarter of the stack limit
            continue
        assert result.exit_code == 126
        assert b"too long" in result.stderr
    assert (await box.exec("echo well")).stdout == b"well\n"


async def test_a_command_that_closes_its_streams_is_waited_for(box: NativeSandbox) -> None:
    """Closed output is no end: the exit code is the command's, and what it said before is kept."""
    result = await box.exec("echo said; exec >&- 2>&-; sleep 0.05; exit 5")
    assert (result.exit_code, result.stdout) == (5, b"said\n")


async def test_writes_to_a_process_keep_their_order(box: NativeSandbox) -> None:
    """Two writers at once do not mix their pieces, however small the pipe; a cancelled one leaves the pipe usable."""
    got = bytearray()
    process = await box.start("sleep 0.05; cat", stdin=True, stream=lambda _, data: got.extend(data))
    await asyncio.gather(process.write(b"a" * 300_000), process.write(b"b" * 300_000))
    process.close_stdin()
    assert await process.wait() == 0
    await asyncio.sleep(0)
    assert bytes(got) == b"a" * 300_000 + b"b" * 300_000
    blocked = await box.start("sleep 600", stdin=True)
    writing = asyncio.create_task(blocked.write(b"x" * 1_000_000))
    await asyncio.sleep(0.02)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    blocked.close_stdin()
    with pytest.raises(BrokenPipeError):
        await blocked.write(b"y")
    await blocked.kill()


async def test_a_process_without_stdin_cannot_be_fed(box: NativeSandbox) -> None:
    """Its standard input is empty, and writing to it is an error at once."""
    process = await box.start("cat; exit 7")
    assert await process.wait() == 7
    with pytest.raises(BrokenPipeError):
        await process.write(b"x")
    process.close_stdin()


async def test_signals_never_leave_their_command(box: NativeSandbox) -> None:
    """A signal goes to a command's own group: neither the first process nor another command is ever hit."""
    one, two = await box.start("sleep 600 & wait"), await box.start("sleep 600")
    await one.signal(signal.SIGKILL)
    assert await one.wait() == 137
    await one.signal(signal.SIGKILL)  # it has ended: nothing happens
    while await pids(box) > 2:  # noqa: ASYNC110 (as above)
        await asyncio.sleep(0.01)
    for number in (0, -1, 65, True):
        with pytest.raises(UsageError, match="number"):
            await two.signal(number)
    await two.signal(signal.SIGTERM)
    assert await two.wait() == 143


async def test_the_first_process_refuses_odd_signals_itself(box: NativeSandbox) -> None:
    """PID 1 trusts no number and no target: an odd one is answered with an error, an unknown one with nothing."""
    for number in (0, -9, 4096):
        answer, _ = await box.link.request({"op": "signal", "target": 1, "number": number})
        assert answer["errno"]
    answer, _ = await box.link.request({"op": "signal", "target": 0, "number": 9})
    assert answer["ok"]
    assert (await box.exec("echo well")).stdout == b"well\n"


# -- what a command says -----------------------------------------------------------------------------------------------


async def test_long_output_is_spooled_beside_the_box(engine: NativeEngine) -> None:
    """Of a truncated stream the first spool_bytes stand in a private file of the host; a short one has none."""
    limits = Limits(output_bytes=1000, spool_bytes=100_000)
    box = await engine.create(SPEC, SandboxPolicy(limits=limits))
    result = await box.exec("seq 100000; echo short >&2")
    assert result.truncated
    assert "output_bytes" in result.limits_hit
    assert result.spool is not None
    assert (result.spool.stderr, result.spool.complete) == (None, True)
    path = result.spool.stdout
    assert path is not None
    whole = "".join(f"{number}\n" for number in range(1, 100_001)).encode()
    assert path.read_bytes() == whole[:100_000]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.parent.parent == box.world.folder
    session = await box.session()
    spool = (await session.run("seq 100000")).spool
    assert spool is not None
    assert spool.stdout is not None
    assert spool.stdout.read_bytes() == whole[:100_000]
    assert (await box.exec("seq 10")).spool is None
    await box.close()
    assert not path.exists()


async def test_spools_of_a_box_are_bounded_together(engine: NativeEngine) -> None:
    """Beyond half of the disk limit nothing is spooled any more: the result says so, and the command is undisturbed."""
    limits = Limits(output_bytes=1000, spool_bytes=700_000, disk_mb=2)
    box = await engine.create(SPEC, SandboxPolicy(limits=limits))
    spools = [(await box.exec("head -c 900000 /dev/zero")).spool for _ in range(2)]
    sizes = [spool.stdout.stat().st_size for spool in spools if spool and spool.stdout]
    assert sizes == [700_000, (1 << 20) - 700_000]
    assert [spool.complete for spool in spools if spool] == [True, False]


class Full(Spools):
    """Its files are on a full disk."""

    def create(self) -> tuple[int, Path]:
        return os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC), Path("/dev/full")


@pytest.mark.parametrize("kind", ["full", "no folder"])
def test_a_full_disk_ends_a_spool_and_nothing_else(tmp_path: Path, kind: str) -> None:
    """Where a spool cannot be made or written, output is kept as ever, no error is raised, and the result says so."""
    before = open_fds()
    spools = Full(tmp_path, 1000, 10_000) if kind == "full" else Spools(tmp_path / "no" / "folder", 1000, 10_000)
    collected = Collected(10, None, spools)
    for _ in range(20):
        collected.out(b"0123456789")
    collected.close()
    assert collected.stdout.bytes() == b"0123456789"
    assert collected.spool is not None
    assert not collected.spool.complete
    assert open_fds() == before


async def test_a_stream_that_raises_is_the_callers_error(box: NativeSandbox) -> None:
    """What the callback raises comes out of exec once the command has ended; it is called no more, nothing hangs."""
    calls = []

    def stream(name: str, data: bytes) -> None:
        calls.append(name)
        raise LookupError("of the caller")

    with pytest.raises(LookupError, match="of the caller"):
        await box.exec("for i in 1 2 3; do echo $i; sleep 0.02; done", stream=stream)
    assert calls == ["stdout"]
    assert (await box.exec("echo well")).stdout == b"well\n"


async def test_a_cancelled_command_is_ended(box: NativeSandbox) -> None:
    """Cancelling an exec, also one that is just beginning, kills its tree; the box goes on."""
    for pause_s in (0.0, 0.05):
        running = asyncio.create_task(box.exec("sleep 600 & sleep 600"))
        await asyncio.sleep(pause_s)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await box.exec("true")
    await alone(box)


# -- terminals ---------------------------------------------------------------------------------------------------------


async def test_a_slow_reader_slows_the_terminal(box: NativeSandbox) -> None:
    """A flood on a terminal waits for its reader: little is held meanwhile, and nothing of it is lost."""
    terminal = await box.pty(["sh", "-c", "stty -onlcr; seq 60000; echo over"])
    await asyncio.sleep(0.1)
    shown = bytearray()
    while piece := await terminal.read(4096):
        shown += piece
    assert bytes(shown).endswith(b"59999\n60000\nover\n")
    assert len(shown) == len("".join(f"{number}\n" for number in range(1, 60_001))) + 5
    await terminal.close()


async def test_a_storm_of_sizes_ends_with_the_last(box: NativeSandbox) -> None:
    """A thousand resizes in a row leave the last one, and neither the command nor we are hurt; odd ones are refused."""
    terminal = await box.pty(["sh", "-c", "read line; stty size"])
    for number in range(1, 1001):
        terminal.resize(number, number + 1)
    await terminal.write(b"go\n")
    shown = b""
    while piece := await terminal.read():
        shown += piece
    assert b"1000 1001" in shown
    for size in ((0, 80), (24, 70_000), (-1, 1)):
        with pytest.raises(UsageError, match="window"):
            terminal.resize(*size)
    await terminal.close()
    terminal.resize(24, 80)
    with pytest.raises(BrokenPipeError):
        await terminal.write(b"x")


async def test_writing_to_a_terminal_nobody_reads_ends_with_it(box: NativeSandbox) -> None:
    """Keys beyond what the terminal holds wait; when its command ends, or it is closed, the writer is told."""
    for closing in (False, True):
        terminal = await box.pty(["sh", "-c", "stty -icanon -echo; echo up; sleep 600"])
        assert b"up" in await terminal.read()
        writing = asyncio.create_task(terminal.write(b"x" * 1_000_000))
        await asyncio.sleep(0.05)
        assert not writing.done()
        await (terminal.close() if closing else terminal.process.kill())
        with pytest.raises(BrokenPipeError):
            await writing
        await terminal.close()


async def test_a_background_job_does_not_keep_a_terminal_open(box: NativeSandbox) -> None:
    """When the command has ended and all was read the reading ends, though a job it left still has the terminal."""
    terminal = await box.pty(["sh", "-c", "trap '' HUP; sleep 600 & echo over"])
    shown = b""
    while piece := await terminal.read():
        shown += piece
    assert shown == b"over\r\n"
    assert await terminal.process.wait() == 0
    await terminal.close()
    await alone(box)


async def test_a_cancelled_terminal_leaves_nothing(box: NativeSandbox) -> None:
    """Cancelling pty() while it is being made leaves neither a process nor a descriptor."""
    await box.exec("true")
    before = open_fds()
    for rounds in range(4):
        making = asyncio.create_task(box.pty(["sleep", "600"]))
        for _ in range(rounds):
            await asyncio.sleep(0)
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)
    await box.exec("true")
    await alone(box)
    assert open_fds() == before


# -- the end of a box --------------------------------------------------------------------------------------------------


async def _busy(box: NativeSandbox) -> list[asyncio.Task[object]]:
    """Everything at once that holds descriptors."""
    await box.exec("sleep 600 &")  # its pipes are drained
    process = await box.start("sleep 600", stdin=True, stream=lambda *_: None)
    flood = await box.start("yes", stream=lambda *_: None)
    terminal, unread = await box.pty(["cat"]), await box.pty(["yes"])
    session, other = await box.session(), await box.session()
    await other.run("yes &")
    doing = (
        box.exec("sleep 600"), box.exec("yes"), process.write(b"x" * 1_000_000), process.wait(), flood.wait(),
        terminal.read(), unread.write(b"x" * 1_000_000), session.run("sleep 600"), session.run("queued"),
        box.pty(["true"]),
    )
    tasks: list[asyncio.Task[object]] = [asyncio.create_task(one) for one in doing]
    await asyncio.sleep(0.05)
    return tasks


@pytest.mark.parametrize("how", ["close", "killed"])
async def test_the_end_of_a_box_ends_everything_and_leaves_no_descriptor(engine: NativeEngine, how: str) -> None:
    """Beside running, fed, flooding, waiting and interactive commands: all are told SandboxDied, nothing is left."""
    await (await engine.create(SPEC, SandboxPolicy())).close()
    before = open_fds()
    box = await engine.create(SPEC, SandboxPolicy())
    tasks = await _busy(box)
    if how == "killed":
        os.kill(box.pid, signal.SIGKILL)
        await asyncio.wait(tasks, timeout=30)
    await box.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    made = results.pop()  # the terminal, unless it came too late
    assert {type(result) for result in results} == {SandboxDied}, results
    assert isinstance(made, SandboxDied) or made is not None
    for doing in (box.session(), box.pty(), box.start("true", stdin=True, stream=lambda *_: None)):
        with pytest.raises(SandboxDied):
            await doing
    await asyncio.sleep(0)
    assert open_fds() == before


CLOSING = """
import asyncio, sys
from pathlib import Path
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.native.engine import NativeEngine

async def main():
    engine = NativeEngine(Path(sys.argv[1]))
    box = await engine.create(EnvironmentSpec(), SandboxPolicy())
    session = await box.session()
    terminal = await box.pty(["cat"])
    process = await box.start("cat", stdin=True, stream=print)
    running = asyncio.create_task(session.run("sleep 600"))
    await asyncio.sleep(0.05)
    await engine.close()
    try:
        await running
    except Exception as error:
        print(type(error).__name__)

asyncio.run(main())
"""


def test_a_program_that_ends_amid_everything_ends_quietly(shed_home: Path) -> None:
    """An engine closed beside an open session, terminal and process leaves no warning and no traceback."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", CLOSING, str(shed_home)],
        capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "SandboxDied\n"), done.stderr
    assert done.stderr == ""


STARVED = """
import os, signal
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if os.fork():
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    signal.pause()
while True:
    pass
"""


async def test_a_command_that_dies_slowly_takes_nothing_else_along(engine: NativeEngine) -> None:
    """A killed process that gets no processor to end on is waited for; other commands of the box live on."""
    box = await engine.create(SPEC, SandboxPolicy())
    try:
        other = await box.start("sleep 600")
        for _ in range(3):
            hog = await box.start(["python3", "-c", STARVED.replace("signal.pause()", "os._exit(0)")])
            assert (await box.exec(["python3", "-c", STARVED], timeout_s=0.3)).timed_out
            await hog.kill()
        alive = asyncio.create_task(other.wait())
        assert (await box.exec("sleep 0.1")).exit_code == 0
        assert not alive.done()
        await other.kill()
        await alive
    finally:
        await box.close()
