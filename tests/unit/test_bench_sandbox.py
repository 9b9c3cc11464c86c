"""``woodshed bench sandbox``: in seconds instead of minutes, with the real engine and whatever yardsticks are here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kit import leftovers, woodshed
from nobody import as_nobody, environment, python_for_all
from woodshed.errors import EnvironmentFault, UsageError
from woodshed.services.benching import figures, left, raw, root, sandbox
from woodshed.services.benching.density import idle
from woodshed.services.benching.external import External
from woodshed.services.benching.rounds import Quiet, Samples, quantile, take
from woodshed.services.benching.shed import Shed
from woodshed.services.benching.subject import CREATE, EXEC, MEASURES, WARM, Missing, Subject

QUICK = ("--samples", "2", "--idle", "3", "--churn", "6", "--patience", "0")
COMPILER = next(filter(None, map(shutil.which, raw.COMPILERS)), None)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One quick run of the command on a state folder of its own, and what it left there."""
    home = tmp_path_factory.mktemp("bench")
    done = woodshed("bench", "sandbox", *QUICK, "--yardstick", "raw", "--yardstick", "bwrap", "--json",
                    "--save", home / "figures.json", home=home)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert json.loads((home / "figures.json").read_text()) == told
    return told | {"leftovers": leftovers(home), "scratch": [str(path) for path in home.glob("bench-*")]}


def test_an_engine_has_every_figure_or_says_why_not(measured: dict[str, Any]) -> None:
    """Each measure of each engine is a median, a 95th percentile and a count, or null with a reason."""
    assert {"native", "native_limits", "native_host"} <= measured["engines"].keys()
    for name, row in measured["engines"].items():
        for measure in MEASURES:
            if row[measure] is None:
                assert row["why"][measure], (name, measure)
            else:
                assert 0 < row[measure]["p50"] <= row[measure]["p95"], (name, measure)
                assert row[measure]["n"] == 2
    own = measured["engines"]["native"]
    assert own[CREATE]
    assert own[EXEC]
    assert own[WARM], own["why"]
    assert own["idle_mb"] == measured["idle"]["idle_mb"]
    assert own["churn_per_s"] == measured["churn"]["churn_per_s"] > 0


def test_a_measurement_leaves_nothing(measured: dict[str, Any]) -> None:
    """Afterwards no process, mount, cgroup or directory is there, by its own account and by another one."""
    assert measured["left"] == measured["leftovers"] == measured["scratch"] == []


def test_a_yardstick_that_is_not_here_is_named(measured: dict[str, Any]) -> None:
    """A yardstick is measured or stands under ``not_found`` with what is wrong."""
    for name in ("raw", "bwrap"):
        assert (name in measured["engines"]) != (name in measured["not_found"])


def test_parts_of_a_cycle_make_the_whole(measured: dict[str, Any]) -> None:
    """Create, first exec and close are measured apart, in the samples of the cycle itself."""
    assert measured["phases_ms"]["native"].keys() == {"create", "first_exec", "close"}
    assert all(0 < cell["p50"] <= cell["p95"] for cell in measured["phases_ms"]["native"].values())


@pytest.mark.skipif(COMPILER is None, reason="no C compiler; apt-get install gcc libc6-dev")
def test_a_ratio_is_of_the_medians_shown(measured: dict[str, Any]) -> None:
    """create_over_raw is the engine's median over raw's, as both stand in the same object."""
    own, limit = (measured["engines"][name][CREATE]["p50"] for name in ("native", "raw"))
    assert measured["ratios"]["create_over_raw"] == round(own / limit, 4)
    assert measured["ratios"]["create_over_podman_run"] is None


def test_the_tables_name_what_was_measured(shed_home: Path) -> None:
    """For people: engines, targets, what is left; parts that were not asked for are left out."""
    done = woodshed("bench", "sandbox", "--samples", "1", "--idle", "0", "--churn", "0", "--patience", "0",
                    "--yardstick", "raw", home=shed_home)
    assert done.returncode == 0, done.stderr
    assert "native_host" in done.stdout
    assert "create_over_raw" in done.stdout
    assert "left: nothing" in done.stdout
    assert "churn:" not in done.stdout


def test_an_unknown_yardstick_is_a_usage_error(shed_home: Path) -> None:
    """A misspelt name leaves with 2 and the names there are."""
    done = woodshed("bench", "sandbox", "--yardstick", "dockr", home=shed_home)
    assert done.returncode == 2
    assert "unknown yardstick 'dockr'. Known: raw, bwrap, crun, runc, podman." in done.stderr


def test_targets_are_met_missed_or_not_measured() -> None:
    """A bound is met at its value, missed beyond, and unknown without one; for exec one of two bounds is enough."""
    own = {EXEC: {"p50": 9.0}, "idle_mb": 3.0, "churn_per_s": 79.9}
    found = dict.fromkeys(figures.ratios({}, "native"), None) | {"exec_over_podman_exec": 0.03, "create_over_raw": 4.6}
    rows = {row["name"]: row["met"] for row in figures.targets(own, found)}
    assert rows["exec_ms"] is rows["exec_over_podman_exec"] is rows["idle_mb"] is True
    assert rows["create_over_raw"] is rows["churn_per_s"] is False
    assert rows["warm_over_raw"] is rows["snapshot_ms"] is None


@pytest.mark.parametrize(("share", "value"), [(0.5, 2.0), (0.95, 4.0), (0.25, 1.0), (1.0, 4.0)])
def test_a_quantile_is_a_sample(share: float, value: float) -> None:
    """The nearest rank: the smallest sample that so many do not exceed."""
    assert quantile([4.0, 1.0, 3.0, 2.0], share) == value


def test_quiet_samples_alone_count_where_they_are_enough() -> None:
    """Samples of a busy machine are used only where the quiet ones are fewer than asked."""
    assert Samples(2, [1.0, 1.0], [9.0]).figures() == {"p50": 1.0, "p95": 1.0, "n": 2, "quiet": True}
    assert Samples(3, [1.0, 1.0], [9.0]).figures() == {"p50": 1.0, "p95": 9.0, "n": 3, "quiet": False}


async def test_rounds_interleave_and_drop_what_fails() -> None:
    """Every round measures everything; the first sample of a burst is thrown away; a failing measure says why."""
    calls: list[str] = []

    def fine(name: str) -> Subject:
        async def burst(count: int) -> list[float]:
            calls.append(name)
            return [99.0, *([1.0] * (count - 1))]

        return Subject(name, "", "", {CREATE: burst})

    async def broken(count: int) -> list[float]:
        raise Missing("no such thing here")

    subjects = [fine("a"), fine("b")]
    subjects[1].bursts[EXEC] = broken
    taken = await take(subjects, samples=7, seed=1, quiet=Quiet(0), told=lambda _: None)
    assert sorted(calls[:2]) == sorted(calls[2:]) == ["a", "b"]
    assert taken["a", CREATE].values == taken["b", CREATE].values == [1.0] * 7
    assert subjects[1].why == {EXEC: "no such thing here"}
    assert ("b", EXEC) not in taken


def test_a_command_that_fails_says_so(tmp_path: Path) -> None:
    """A foreign command that ends with an error gives no sample but its complaint."""
    external = External(tmp_path / "scratch")
    with pytest.raises(Missing, match="sh ended with 3: too bad"):
        external.run(["sh", "-c", "echo too bad >&2; exit 3"], 2)
    assert len(external.run(["true"], 3, fresh=True)) == 3
    assert not (tmp_path / "scratch" / "fresh").exists()


def test_the_common_root_runs_by_itself(tmp_path: Path) -> None:
    """What every engine starts from holds all that its programs load."""
    made = root.make(tmp_path / "root")
    for program in root.PROGRAMS:
        assert os.access(made / "bin" / program, os.X_OK)
    if os.geteuid() == 0 and shutil.which("chroot"):
        subprocess.run(["chroot", made, "/bin/sh", "-c", "/bin/true && /bin/sleep 0"], check=True)


@pytest.mark.skipif(COMPILER is None, reason="no C compiler; apt-get install gcc libc6-dev")
async def test_the_raw_limit_leaves_its_folder_as_it_was(tmp_path: Path) -> None:
    """The C program gives one figure a cycle and removes what it made."""
    limit = raw.raw(root.make(tmp_path / "root"), tmp_path / "raw")
    assert len(await limit.bursts[CREATE](3)) == 3
    assert {path.name for path in (tmp_path / "raw").iterdir()} == {"raw", "raw.c"}


async def test_leftovers_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A living engine's processes and folder and a cgroup of its name are told: an empty list means somebody looked."""
    bench = sandbox._Engine("native", tmp_path / "home", root.make(tmp_path / "root"))
    monkeypatch.setattr(left, "_GROUPS", tmp_path / "cgroup")
    shed = bench.shed()
    try:
        await shed.exec(1)
        bench.traces.note()
        [instance] = bench.traces.instances
        group = tmp_path / "cgroup" / "memory" / "woodshed" / instance
        group.mkdir(parents=True)
        found = bench.traces.left()
        assert sum(line.startswith("process") for line in found) == 2  # the fork server and the box
        assert f"cgroup {group}" in found
        assert f"directory {tmp_path}/home/sandboxes/{instance}" in found
        group.rmdir()
    finally:
        await shed.close()
    assert bench.traces.left() == []


async def test_idle_sandboxes_that_cannot_be_are_a_usage_error(tmp_path: Path) -> None:
    """More sandboxes than files may be open is refused before any is made."""
    shed: Shed = sandbox._Engine("native", tmp_path / "home", tmp_path).shed()
    with pytest.raises(UsageError, match="open files"):
        await idle(shed, 10**9)


async def test_an_engine_that_makes_no_sandbox_is_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the engine itself fails, the command fails with its reason instead of printing empty tables."""
    monkeypatch.setattr(root, "make", lambda path: path)  # no root file system
    with pytest.raises((EnvironmentFault, UsageError), match="root"):
        await sandbox.measure(sandbox.Size(samples=1, idle=0, churn=0, patience_s=0), engine="native", seed=0,
                              told=lambda _: None, yardsticks=())


@pytest.mark.skipif(os.geteuid() != 0, reason="run as root, to become nobody")
def test_an_ordinary_user_measures_too(nobodys_folder: Path) -> None:
    """Without privilege the same command works, and weighs by MemAvailable where set sizes may not be read."""
    python = python_for_all()
    if python is None:
        pytest.skip("no Python of this version that nobody may run; apt-get install python3")
    done = as_nobody(python, "-m", "woodshed", "bench", "sandbox", *QUICK, "--yardstick", "raw", "--json",
                     env=environment(nobodys_folder) | {"WOODSHED_HOME": str(nobodys_folder / "home")},
                     cwd=nobodys_folder)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["machine"]["root"] is False
    assert told["engines"]["native"][CREATE]["n"] == 2
    assert told["idle"]["method"] == "MemAvailable"
    assert told["left"] == []
    assert told["engines"].get("raw", told["not_found"].get("raw"))


def test_the_timing_process_is_small() -> None:
    """What starts a foreign command loads the standard library alone."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import timed; print('woodshed' in sys.modules)"
    folder = Path(sandbox.__file__).parent
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, folder], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
