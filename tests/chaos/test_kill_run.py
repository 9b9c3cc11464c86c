"""A run that is killed again and again finishes with every attempt once, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kit import EXAMPLES, leftovers, woodshed

FIRST_STEPS = EXAMPLES / "first-steps"


@pytest.fixture
def home(new_home: Callable[[], Path]) -> Path:
    """A state folder of the test's own."""
    return new_home()


def begin(home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The command, running in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "woodshed", "run", *arguments, "--json"],
        env={**os.environ, "WOODSHED_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def executions(home: Path) -> int:
    """How many executions have begun in this state folder."""
    with closing(sqlite3.connect(f"file:{home}/woodshed.db?mode=ro", uri=True)) as database:
        return int(database.execute("select count(*) from executions").fetchone()[0])


@pytest.mark.parametrize(("times", "kills"), [(1, 8), pytest.param(3, 20, marks=pytest.mark.slow)])
def test_attempts_survive_kills(home: Path, times: int, kills: int) -> None:
    """SIGKILL at 20 random moments of a 60-attempt run (or 8 of one of 20), resumed each time: every result is there

    once, and nothing is left over.
    """
    count = 20 * times
    warm = woodshed("run", FIRST_STEPS, "--agent", "nop", "--json", home=home)
    assert warm.returncode == 0, warm.stderr
    seed = int(os.environ.get("WOODSHED_TEST_SEED") or random.SystemRandom().randrange(10**6))
    sys.stderr.write(f"seed {seed} (WOODSHED_TEST_SEED repeats it)\n")
    dice = random.Random(seed)
    asked = [str(FIRST_STEPS), "--agent", "oracle", "--agent", "nop", "-n", str(times), "-c", "2", "--seed", str(seed)]
    running = begin(home, *asked)
    for kill in range(kills):
        begun = executions(home)
        wanted, deadline = begun + dice.randint(0, 3), time.monotonic() + 60
        while executions(home) < wanted and running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(dice.uniform(0.0, 0.3))
        running.send_signal(signal.SIGKILL)
        running.wait()
        # Every other time the same command is given again instead of --resume: it must find the interrupted run.
        running = begin(home, *(("--resume", "last") if kill % 2 else asked))
    running.wait()
    newest = json.loads(woodshed("show", "--json", home=home).stdout)["runs"]
    ours = [row for row in newest if row["attempts"] == count]
    assert len(ours) == 1, "a restart of the same command made another run"
    final = woodshed("run", "--resume", ours[0]["run"], "--json", home=home)
    assert final.returncode == 0, final.stderr
    shown = json.loads(woodshed("show", ours[0]["run"], "--json", home=home).stdout)
    results = shown["results"]
    assert len(results) == count
    assert len({row["attempt"] for row in results}) == count
    assert Counter((row["task"], row["agent"]) for row in results).most_common()[-1][1] == times
    assert all(row["valid"] for row in results), [row for row in results if not row["valid"]]
    assert sum(row["passed"] for row in results) == count // 2
    assert sum(row["executions"] for row in results) > count, "no kill hit an attempt: the test proved nothing"
    assert leftovers(home) == []


def test_a_run_whose_owner_lives_is_not_taken_over(home: Path) -> None:
    """Resume refuses while the first process works, naming it; afterwards the run is finished once."""
    running = begin(home, str(FIRST_STEPS), "--agent", "oracle", "-n", "3", "-c", "1")
    try:
        refused = None
        deadline = time.monotonic() + 120
        while running.poll() is None and time.monotonic() < deadline:
            refused = woodshed("run", "--resume", "last", "--json", home=home)
            if refused.returncode == 2 and str(running.pid) in refused.stdout:
                break
        assert refused is not None
        assert refused.returncode == 2, refused.stdout
        assert str(running.pid) in refused.stdout
    finally:
        running.wait()
    shown = json.loads(woodshed("show", "last", "--json", home=home).stdout)
    assert [row["passed"] for row in shown["results"]] == [True] * 30
    assert all(row["executions"] == 1 for row in shown["results"])


def test_ctrl_c_ends_cleanly_and_says_how_to_resume(home: Path) -> None:
    """SIGINT closes everything live, exits 130, names the command that resumes, and that command finishes the run."""
    running = subprocess.Popen(
        [sys.executable, "-m", "woodshed", "run", str(FIRST_STEPS), "--agent", "oracle", "-n", "6", "-c", "2"],
        env={**os.environ, "WOODSHED_HOME": str(home)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        listed = woodshed("show", "--json", home=home)
        if listed.returncode == 0 and any(row["done"] >= 3 for row in json.loads(listed.stdout)["runs"]):
            break
        time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=120)
    assert running.returncode == 130, told
    left = json.loads(woodshed("show", "last", "--json", home=home).stdout)
    assert f"woodshed run --resume {left['run']}" in told
    assert {row["state"] for row in left["results"]} == {"done", "pending"}
    assert leftovers(home) == []
    done = woodshed("run", "--resume", "last", "--json", home=home)
    assert json.loads(done.stdout)["agents"][0]["passed"] == 60
