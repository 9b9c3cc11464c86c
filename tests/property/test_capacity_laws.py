"""Slots follow the machine: they grow with need and room, shrink under pressure, and never leave their bounds."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from woodshed.engine.capacity import CPU_PRESSURE, MEMORY_PRESSURE, RESERVE_MB, Host, Need, Slots, measure

PRESSURE = st.one_of(st.none(), st.floats(0, 100))
HOSTS = st.builds(Host, memory_mb=st.integers(0, 200_000), disk_mb=st.integers(0, 200_000), cores=st.integers(1, 64),
                  cpu=PRESSURE, memory=PRESSURE, io=PRESSURE)
NEEDS = st.builds(Need, memory_mb=st.floats(1, 4000), disk_mb=st.floats(1, 4000))
ROOMY = Host(memory_mb=100_000, disk_mb=100_000, cores=4, cpu=0.0, memory=0.0, io=0.0)


@given(st.integers(1, 4), st.integers(4, 40), st.lists(st.tuples(HOSTS, NEEDS, st.integers(0, 60)), max_size=20))
def test_slots_stay_within_their_bounds(least: int, most: int, seen: list[tuple[Host, Need, int]]) -> None:
    """Whatever the machine tells, there are at least so many slots and at most so many, and one more at a time."""
    slots = Slots(least=least, most=most, first=2)
    for host, need, busy in seen:
        before = slots.count
        after = slots.adjust(host, need, busy)
        assert least <= after <= most
        assert after <= before + 1


@given(st.integers(2, 30), NEEDS)
def test_full_slots_on_a_roomy_machine_grow(busy: int, need: Need) -> None:
    """All in use and room for another: one more; not all in use: as many as before."""
    roomy = Host(memory_mb=10**6, disk_mb=10**6, cores=4, cpu=0.0, memory=0.0, io=0.0)
    slots = Slots(first=busy)
    assert slots.adjust(roomy, need, busy) == busy + 1
    assert slots.adjust(roomy, need, 1) == busy + 1


@given(st.integers(4, 100), st.sampled_from(["memory", "cpu"]))
def test_pressure_takes_a_part_back(count: int, kind: str) -> None:
    """Under pressure slots shrink at once, by a part, and say why; without it they come back one by one."""
    slots = Slots(first=count)
    bound = MEMORY_PRESSURE if kind == "memory" else CPU_PRESSURE
    pressed = Host(memory_mb=10**6, disk_mb=10**6, cores=4, **{kind: bound + 1})
    shrunk = slots.adjust(pressed, Need(), count)
    assert count // 2 <= shrunk < count
    assert "waited for" in slots.reason
    assert slots.adjust(ROOMY, Need(), shrunk) == shrunk + 1


def test_memory_that_is_not_there_is_not_promised() -> None:
    """With room for two more attempts there are two more slots than are busy, whatever was before."""
    slots = Slots(first=50)
    tight = Host(memory_mb=RESERVE_MB + 500, disk_mb=10**6, cores=4)
    assert slots.adjust(tight, Need(memory_mb=200.0), 3) == 5
    assert "memory and disk for 5" in slots.reason


def test_a_heavy_attempt_is_remembered() -> None:
    """One heavy attempt moves the estimate half-way at once; light ones bring it back slowly."""
    need = Need(memory_mb=100.0).seen(1100.0, 64.0)
    assert need.memory_mb == 600.0
    assert need.seen(100.0, 64.0).memory_mb == 575.0


def test_a_host_is_read_from_the_kernel(tmp_path: Path) -> None:
    """Free memory is what the kernel has and the group allows; pressure is read; a missing file is no failure."""
    for name, text in {
        "meminfo": "MemTotal: 8000000 kB\nMemAvailable:    4096000 kB\n",
        "pressure/cpu": "some avg10=12.50 avg60=1.00 avg300=0.00 total=1\n",
        "pressure/memory": "some avg10=0.25 avg60=1.00 avg300=0.00 total=1\nfull avg10=9.00 avg60=0 avg300=0 total=0\n",
        "self/cgroup": "3:cpu:/x\n0::/user/job\n",
        "cg/user/job/memory.max": "max\n", "cg/user/job/memory.current": "5\n",
        "cg/user/memory.max": str(1 << 30), "cg/user/memory.current": str(1 << 29),
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    host = measure(tmp_path, proc=tmp_path, groups=tmp_path / "cg")
    assert (host.memory_mb, host.cpu, host.memory, host.io) == (512, 12.5, 0.25, None)
    here = measure(tmp_path)
    assert 0 < here.memory_mb < 1 << 24
    assert here.disk_mb > 0
