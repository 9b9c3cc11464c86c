"""Control groups: where they are made in either version, what is written and read, and what is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.model import Limits
from woodshed.sandbox.native import cgroups
from woodshed.sandbox.native.cgroups import v1, v2

REAL = cgroups.control()
NEEDS_GROUPS = pytest.mark.skipif(
    not REAL.parents, reason="cgroups are not ours to make here: run as root or delegate them")
NEEDS_FREEZER = pytest.mark.skipif(
    REAL.freezer is None, reason="no cgroup of version 2 is ours to make here: run as root or delegate one")
LIMITS = Limits(memory_mb=64, cpus=0.5, pids=77)


def tree(root: Path, **files: str) -> Path:
    """A group as the kernel would show it; ``cgroup__procs`` stands for cgroup.procs."""
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / name.replace("__", ".")).write_text(content)
    return root


def hybrid(root: Path) -> Path:
    for name in ("memory", "cpu", "pids"):
        tree(root / name, cgroup__procs="")
    return root


def own(folder: Path, content: str) -> Path:
    (folder / "own").write_text(content)
    return folder / "own"


# -- version 1 -----------------------------------------------------------------------------------------------------


def test_version_1_makes_groups_below_each_hierarchy(tmp_path: Path) -> None:
    """One directory a controller that a limit needs, with the values the kernel takes; pids come along."""
    root = hybrid(tmp_path / "fs")
    control = cgroups.control(root=root, own=own(tmp_path, "4:memory:/x\n0::/\n"))
    groups = control.make("run-1", "7", LIMITS)
    at = {name: root / name / "woodshed/run-1/7" for name in ("memory", "cpu", "pids")}
    assert (control.version, groups.by_controller) == (1, at)
    assert (at["memory"] / "memory.limit_in_bytes").read_text() == str(64 << 20)
    assert (at["memory"] / "memory.memsw.limit_in_bytes").read_text() == str(64 << 20)
    assert (at["cpu"] / "cpu.cfs_quota_us").read_text() == "50000"
    assert (at["cpu"] / "cpu.cfs_period_us").read_text() == "100000"
    assert (at["pids"] / "pids.max").read_text() == "77"
    assert set(control.make("run-1", "8", Limits(cpus=1)).by_controller) == {"cpu", "pids"}
    assert control.make("run-1", "9", Limits()).paths == ()
    assert not (root / "pids/woodshed/run-1/9").exists()


def test_version_1_uses_our_own_group_where_the_root_is_closed(tmp_path: Path) -> None:
    """What lies at the root of a hierarchy may be another's; a delegated group deeper down is ours."""
    group = tree(tmp_path / "fs/cpu/user.slice/mine", cgroup__procs="")
    found = v1.parents(tmp_path / "fs", "3:cpuacct,cpu:/user.slice/mine\n1:name=systemd:/\n")
    assert found == {"cpu": group / "woodshed"}


def test_version_1_tells_kills_refusals_and_use(tmp_path: Path) -> None:
    """Figures are read as the kernel writes them; a missing file is no figure."""
    control = cgroups.control(root=hybrid(tmp_path / "fs"), own=own(tmp_path, ""))
    groups = control.make("run", "1", LIMITS)
    tree(groups.by_controller["memory"], memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
         memory__usage_in_bytes="4096\n")
    tree(groups.by_controller["pids"], pids__events="max 12\n")
    assert (groups.oom_kills(), groups.pids_refused()) == (3, 12)
    assert groups.tell("memory_bytes") == 4096
    assert (groups.tell("memory_peak_bytes"), groups.cpu_s()) == (None, None)
    tree(groups.by_controller["cpu"], cpuacct__usage="1500000000\n")
    assert groups.cpu_s() == 1.5


# -- version 2 -----------------------------------------------------------------------------------------------------


def unified(root: Path, controllers: str = "cpuset cpu io memory pids", active: str = "", procs: str = "") -> Path:
    return tree(root, cgroup__controllers=controllers, cgroup__subtree_control=active, cgroup__procs=procs)


def test_version_2_makes_one_group_with_all_limits(tmp_path: Path) -> None:
    """Controllers are handed down to the box's group, which has every limit in the format of version 2."""
    root = unified(tmp_path / "fs")
    control = cgroups.control(root=root, own=own(tmp_path, "0::/\n"))
    groups = control.make("run", "1", LIMITS)
    at = root / "woodshed/run/1"
    assert (control.version, groups.paths, control.freezer) == (2, (at,), root / "woodshed")
    assert (at / "memory.max").read_text() == str(64 << 20)
    assert (at / "memory.swap.max").read_text() == "0"
    assert (at / "cpu.max").read_text() == "50000 100000"
    assert (at / "pids.max").read_text() == "77"
    for group in (root, root / "woodshed", root / "woodshed/run"):
        assert set(v2.active(group)) == {"memory", "cpu", "pids"}
    tree(at, memory__events="low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 0\n", memory__peak="77\n",
         pids__events="max 5\nmax.imposed 5\n", cpu__stat="usage_usec 2500000\nuser_usec 1\n")
    assert (groups.oom_kills(), groups.pids_refused(), groups.cpu_s()) == (2, 5, 2.5)
    assert groups.tell("memory_peak_bytes") == 77


def test_version_2_moves_us_into_a_leaf_of_a_group_that_is_ours_alone(tmp_path: Path) -> None:
    """A group with processes hands nothing down: so we, and nobody else, leave it for one below."""
    scope = "user.slice/user-7.slice/user@7.service/app.slice/mine.scope"
    root = tree(tmp_path / "fs")
    mine = unified(root / scope, procs=f"{os.getpid()}\n")
    (mine / "cgroup.subtree_control").unlink()
    (mine / "cgroup.subtree_control").symlink_to("/dev/null")  # what is written is refused, as with processes in it
    found = v2.find(root, f"0::/{scope}\n", os.getpid())
    assert (mine / "woodshed-engine/cgroup.procs").read_text() == str(os.getpid())
    assert found.parents == {}  # the kernel, here played by /dev/null, went on refusing


def test_version_2_leaves_a_shared_group_alone(tmp_path: Path) -> None:
    """Where others share our group nobody is moved, and the reason says so."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        root = tree(tmp_path / "fs")
        mine = unified(root / "shared", procs=f"{os.getpid()}\n{os.getppid()}\n")
        (mine / "cgroup.subtree_control").unlink()
        (mine / "cgroup.subtree_control").symlink_to("/dev/null")
        found = v2.find(root, "0::/shared\n", os.getpid())
        assert (found.parents, found.freezer) == ({}, None)
        assert "other processes share" in found.reason
        assert not (mine / "woodshed-engine").exists()
        assert v2._ours_alone(tree(mine, cgroup__procs=f"{os.getpid()}\n{child.pid}\n"), os.getpid())
        assert not v2._ours_alone(tree(mine, cgroup__procs="0\n"), os.getpid())
    finally:
        child.communicate(b"\n")


def test_version_2_finds_the_leaf_it_made_before(tmp_path: Path) -> None:
    """A process that was moved into the leaf uses the group above it, not a leaf of the leaf."""
    mine = unified(tmp_path / "fs/mine", active="memory cpu pids")
    tree(mine / "woodshed-engine", cgroup__controllers="memory cpu pids", cgroup__procs=f"{os.getpid()}\n")
    found = v2.find(tmp_path / "fs", "0::/mine/woodshed-engine\n", os.getpid())
    assert set(found.parents.values()) == {mine / "woodshed"}
    assert sorted(path.name for path in mine.iterdir() if path.is_dir()) == ["woodshed", "woodshed-engine"]


def test_version_2_says_what_is_missing(tmp_path: Path) -> None:
    """A group that is offered fewer controllers limits what it can, and names the rest."""
    root = unified(tmp_path / "fs", controllers="memory pids")
    control = cgroups.control(root=root, own=own(tmp_path, "0::/\n"))
    assert set(control.parents) == {"memory", "pids"}
    assert control.reason.endswith("hands down no cpu")
    assert set(control.make("run", "1", LIMITS).by_controller) == {"memory", "pids"}
    assert v2.find(tmp_path / "nothing", "0::/\n", os.getpid()).parents == {}


@given(cpus=st.floats(0.001, 512))
def test_a_quota_is_what_the_kernel_takes(cpus: float) -> None:
    """At least a millisecond a period, else the CPUs asked for, to the microsecond."""
    quota = v1.quota_us(Limits(cpus=cpus))
    assert quota == max(1000, int(cpus * 100_000))


# -- the kernel's own ----------------------------------------------------------------------------------------------


@NEEDS_GROUPS
def test_a_group_half_made_is_taken_back(tmp_path: Path) -> None:
    """Where the kernel refuses a value no directory is left."""
    control = cgroups.control(tmp_path)
    with pytest.raises(OSError, match="rgument"):
        control.make("half", "1", Limits.model_construct(memory_mb=64, cpus=1.0, pids=-5))
    assert [path for parent in control.parents.values() for path in (parent / "half").glob("1")] == []
    control.close("half")
    assert not any((parent / "half").exists() for parent in control.parents.values())


@NEEDS_GROUPS
def test_what_a_killed_engine_left_is_found_by_its_note(tmp_path: Path) -> None:
    """The note stands before the first group; the sweep removes what it names, and nothing that is not ours."""
    groups = cgroups.control(tmp_path).make("dead-run", "1", LIMITS)
    assert all(path.exists() for path in groups.paths)
    top = next(iter(REAL.parents.values())).parent
    other = top / "not-ours" / "dead-run"
    other.mkdir(parents=True)
    try:
        with (tmp_path / "cgroups").open("a") as note:
            note.write(f"{other}\n{top}/woodshed/../not-ours/dead-run\n/etc/woodshed/dead-run\n")
        cgroups.sweep("dead-run", tmp_path)
        assert not any(path.parent.exists() for path in groups.paths)
        assert other.exists()
    finally:
        other.rmdir()
        other.parent.rmdir()


@NEEDS_FREEZER
def test_a_frozen_group_stops_who_joins_and_lets_go(tmp_path: Path) -> None:
    """A process that joins stands still, can be thawed, and can be killed while it stands; then the group goes."""
    control = cgroups.control(tmp_path)
    groups = control.make("freezing", "1", Limits())
    ticker = "import time\nwhile True: print(flush=True); time.sleep(0.01)"
    process = subprocess.Popen([sys.executable, "-c", ticker], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.read(1)
        group = groups.freeze()
        assert group is not None
        (group / "cgroup.procs").write_text(str(process.pid))
        assert groups.frozen()
        os.set_blocking(process.stdout.fileno(), False)
        while process.stdout.read(100):
            pass
        assert not process.stdout.read(100)
        groups.thaw()
        os.set_blocking(process.stdout.fileno(), True)
        assert process.stdout.read(1) == b"\n"
        groups.freeze()
        assert groups.frozen()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]  # it is a pipe
        groups.remove()
        control.close("freezing")
    assert not (control.freezer / "freezing").exists()  # type: ignore[operator]  # NEEDS_FREEZER
