"""Workers come when there is work and go when there is none; what a user's command makes of it is told, not trusted."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kit import EXAMPLES, leftovers, woodshed
from woodshed.engine.scaling import Bounds
from woodshed.errors import EnvironmentFault, UsageError
from woodshed.model import Agent, Attempt, Run, RunSpec, RunState
from woodshed.model.event import now
from woodshed.services.home import Home, opened
from woodshed.services.providers import Command, Local, clean
from woodshed.services.scaling import Scaled, Terms, scale, surplus
from woodshed.store import attempt_id, new_run_id
from woodshed.store.queue import Submission, Worker


def terms(bounds: Bounds, **fields: Any) -> Terms:
    """Looks often."""
    return Terms(bounds=bounds, interval_s=0.05, **fields)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home in which nothing ever ran."""
    with opened(tmp_path / "home") as home:
        yield home


def waiting(home: Home, count: int, pool: str = "") -> list[str]:
    """So many attempts of a shared run that nobody here executes."""
    run_id, agent = new_run_id(), Agent(name="oracle", harness="oracle")
    spec = RunSpec(tasks=("/tasks/a",), agents=(agent,), attempts=count)
    planned = [Attempt(id=attempt_id(run_id, n), run=run_id, task="a", agent="oracle", index=n - 1, seed=n)
               for n in range(1, count + 1)]
    run = Run(id=run_id, spec=spec, state=RunState.QUEUED, created_at=now())
    home.store.create_shared(run, planned, Submission(run=run_id, pool=pool), {})
    return [attempt.id for attempt in planned]


def script(folder: Path, text: str) -> str:
    """The command of a script of the user's."""
    path = folder / "scale.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def gone(pid: int) -> bool:
    """Whether the process has ended, whoever has yet to hear of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def until(holds: Callable[[], bool]) -> None:
    """Return when it does."""
    while not holds():  # noqa: ASYNC110 (files tell no one)
        await asyncio.sleep(0.02)


@pytest.mark.slow
def test_local_workers_come_drain_the_queue_and_leave(new_home: Callable[[], Path]) -> None:
    """Twelve attempts, two workers at most: they appear, finish the run, and nothing of them is left."""
    path = new_home()
    asked = woodshed("run", EXAMPLES / "first-steps" / "write-file", "-a", "oracle", "-n", "12", "--detach", "--pool",
                     "small", "--json", home=path)
    assert asked.returncode == 0, asked.stderr
    run = json.loads(asked.stdout)["run"]
    done = woodshed("scale", "--provider", "local", "--max", "2", "--slots", "1", "--pool", "small", "--drain-target",
                    "1s", "--interval", "0.2", "--until-empty", "--json", home=path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["ended"], told["most"], told["failures"]) == ("empty", 2, 0)
    assert told["decisions"][0]["wanted"] == 2
    assert told["decisions"][-1]["wanted"] == 0
    with opened(path) as home:
        assert home.store.run(run).state is RunState.FINISHED
        assert all(attempt.outcome is not None for attempt in home.store.attempts(run))
        assert home.store.queue.workers() == []
    assert leftovers(path) == []


async def test_a_command_hears_each_number_once(home: Home, tmp_path: Path) -> None:
    """In its words and its environment, for its own pool alone; and 0 once nothing is left."""
    heard = tmp_path / "heard"
    attempts = waiting(home, 12, "gpu")
    waiting(home, 5)
    says = script(tmp_path, f"echo $1 $2 $WOODSHED_WANTED $WOODSHED_POOL >> {heard}")
    command = Command(f"{says} {{wanted}} {{pool}}", pool="gpu", slots=4)
    asked = terms(Bounds(0, 10, drain_s=60, cool_s=0), pool="gpu", until_empty=True)
    scaling = asyncio.create_task(scale(home, asked, command, print))
    await until(heard.exists)
    for attempt in attempts:
        home.store.queue.done(attempt)
    scaled = await scaling
    assert heard.read_text().splitlines()[0] == "3 gpu 3 gpu"
    assert scaled.decisions[0].wanted == 3
    assert (scaled.ended, scaled.failures, scaled.most) == ("empty", 0, 3)
    assert home.store.queue.depth("").ready == 5


async def test_a_command_that_fails_is_told_and_asked_again(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of its output is told, no more of it, and the controller goes on until the command succeeds."""
    monkeypatch.setattr("woodshed.services.scaling._AGAIN_S", (0.05, 0.1))
    waiting(home, 4)
    told, done = list[str](), tmp_path / "done"
    text = f"yes noise | head -c 300000; if [ -e {tmp_path}/once ]; then touch {done}; else touch {tmp_path}/once; " \
           "echo quota exceeded; exit 3; fi"
    command = Command(script(tmp_path, text), pool="", slots=1)
    scaling = asyncio.create_task(scale(home, terms(Bounds(0, 2)), command, told.append))
    await until(done.exists)
    os.kill(os.getpid(), signal.SIGTERM)
    scaled = await scaling
    assert (scaled.ended, scaled.failures) == ("stopped", 1)
    [failure] = [line for line in told if "failed with code 3" in line]
    assert "quota exceeded" in failure
    assert len(failure) < 700


async def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    """After its time it and its children are gone, and the fault says how long it was given."""
    marker = tmp_path / "child"
    command = Command(script(tmp_path, f"sleep 600 & echo $! > {marker}; wait"), pool="", slots=1, timeout_s=0.5)
    with pytest.raises(EnvironmentFault, match=r"took more than 0\.5 s"):
        await command.scale(1, [])
    child = int(marker.read_text())
    await until(lambda: gone(child))


async def test_a_command_sees_no_secret_it_was_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, tokens and addresses with passwords are not in its environment, but for those that are passed by name."""
    secrets = {"OPENAI_API_KEY": "sk-1", "WOODSHED_DATABASE_URL": "postgresql://u:p@h/d", "PROXY": "http://a:b@c",
               "AWS_SECRET_ACCESS_KEY": "x", "GITHUB_TOKEN": "y", "DB_PASSWORD": "z"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    seen = tmp_path / "seen"
    for passed in ((), ("AWS_SECRET_ACCESS_KEY",)):
        await Command(script(tmp_path, f"env > {seen}"), pool="", slots=1, passed=passed).scale(1, [])
        names = {line.partition("=")[0] for line in seen.read_text().splitlines()}
        assert names & secrets.keys() == set(passed)
        assert {"PATH", "WOODSHED_WANTED"} <= names
    assert clean({"KUBECONFIG": "/a", "SLURM_CONF": "/b"}, frozenset()) == {"KUBECONFIG": "/a", "SLURM_CONF": "/b"}


async def test_no_shell_reads_the_command(tmp_path: Path) -> None:
    """What would mean something to a shell is a word; other braces stay as they are; nonsense is refused."""
    seen = tmp_path / "seen"
    arguments = f"'$(touch {tmp_path}/no)' ';' {{wanted}}{{pool}} '{{.items}}' {{other}}"
    await Command(f'{script(tmp_path, f"printf %s,, $@ > {seen}")} {arguments}', pool="p", slots=1).scale(7, [])
    assert "7p,," in seen.read_text()
    assert "{.items},,{other},," in seen.read_text()
    assert not (tmp_path / "no").exists()
    for bad in ("", "  ", "kubectl 'scale"):
        with pytest.raises(UsageError, match="--command"):
            Command(bad, pool="", slots=1)
    with pytest.raises(EnvironmentFault, match="cannot be run"):
        await Command(str(tmp_path / "missing"), pool="", slots=1).scale(1, [])


def worker_of(name: str, busy: int, *, state: str = "working") -> Worker:
    """A worker with so much at work."""
    return Worker(executor=name, host="here", pid=1, started_at=now(), beat=0.0, slots=4, busy=busy, state=state)


def test_those_with_the_least_at_work_leave() -> None:
    """Idle ones first, the newest of equals; who drains already is no surplus."""
    there = [worker_of(name, busy) for name, busy in (("a", 3), ("b", 0), ("c", 1), ("d", 0))]
    there.append(worker_of("e", 0, state="draining"))
    assert [one.executor for one in surplus(2, there)] == ["d", "b"]
    assert surplus(4, there) == surplus(9, there) == []


async def test_surplus_workers_are_asked_to_drain_by_the_queue(home: Home, tmp_path: Path) -> None:
    """With ``drains`` the queue tells them, so that a batch system's jobs end by themselves."""
    for name in ("one", "two"):
        home.store.queue.enlist(name, host="here", pid=1, slots=1)
    waiting(home, 1)
    asked = terms(Bounds(0, 5, cool_s=0), drains=True)
    scaling = asyncio.create_task(scale(home, asked, Command("true", pool="", slots=1), print))
    await until(lambda: [one.state for one in home.store.queue.workers()].count("draining") == 1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert (await scaling).ended == "stopped"


def sleeper(code: str) -> Sequence[str]:
    """A process that stands for a worker."""
    return [sys.executable, "-c", code]


async def test_local_workers_that_cannot_start_are_not_started_for_ever(home: Home) -> None:
    """Who ends with an error at once is told, and started less and less often."""
    local, told = Local(sleeper("raise SystemExit(3)"), slots=1, tell=lambda text: told.append(text)), list[str]()
    await local.scale(1, [])
    refused = False
    while not refused:
        await asyncio.sleep(0.05)
        try:
            await local.scale(1, [])
        except EnvironmentFault as fault:
            refused = "end with an error" in str(fault)
    assert any("ended with code 3" in line for line in told)
    await local.close()


async def test_local_workers_drain_when_the_controller_ends(home: Home, tmp_path: Path) -> None:
    """A signal to the controller is a signal to its workers, and it waits for them; a second one reaches them, too."""
    code = ("import os, signal, time\nseen = []\nsignal.signal(15, lambda *a: seen.append(1))\n"
            f"open({str(tmp_path)!r} + f'/ready-{{os.getpid()}}', 'w').close()\n"
            "while len(seen) < 2: time.sleep(0.02)")
    waiting(home, 2)
    local, told = Local(sleeper(code), slots=1, tell=lambda text: told.append(text)), list[str]()
    scaling: asyncio.Task[Scaled] = asyncio.create_task(scale(home, terms(Bounds(0, 2)), local, print))
    await until(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: any("draining: 2 workers" in line for line in told))
    assert not scaling.done()
    os.kill(os.getpid(), signal.SIGTERM)
    assert (await scaling).ended == "stopped"
    assert all(one.returncode is not None for one in local._all)


FAKES = {
    "squeue": 'for a in "$@"; do case $a in --states=*) s=${a#*=};; esac; done; '
              'awk -v s="$s" \'$2 == s {print $1}\' "$JOBS"',
    "sbatch": 'n=$(wc -l < "$JOBS"); echo "$((n + 1)) PENDING" >> "$JOBS"; echo "$@" >> "$JOBS.said"',
    "scancel": 'for id in "$@"; do sed -i "s/^$id PENDING/$id CANCELLED/" "$JOBS"; done',
}


def test_the_slurm_script_of_the_page_submits_and_cancels(tmp_path: Path) -> None:
    """Run as it stands in the page, with stand-ins for Slurm: what is missing is submitted, what has begun is left."""
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
    text = next(block for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) if "scale-slurm.sh" in block)
    path, jobs = tmp_path / "scale-slurm.sh", tmp_path / "jobs"
    path.write_text(text)
    jobs.write_text("1 RUNNING\n2 PENDING\n")
    for name, body in FAKES.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "JOBS": str(jobs)}
    for wanted, states in ((4, ["RUNNING", *["PENDING"] * 3]), (4, ["RUNNING", *["PENDING"] * 3]),
                           (2, ["RUNNING", "PENDING", "CANCELLED", "CANCELLED"]),
                           (0, ["RUNNING", *["CANCELLED"] * 3])):
        subprocess.run(["bash", path, str(wanted), "gpu"], env=env, check=True)
        assert [line.split()[1] for line in jobs.read_text().splitlines()] == states
    said = Path(f"{jobs}.said").read_text().splitlines()
    assert said == [f"--parsable --job-name=woodshed-gpu --export=NIL {tmp_path}/worker.sbatch gpu"] * 2
