"""What a native sandbox has used, as its own account tells it while it lives and after it closed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.images import Images
from woodshed.sandbox.native import cgroups
from woodshed.sandbox.native.engine import NativeEngine

SPEC = EnvironmentSpec()
BUSY = "import time\nwhile time.process_time() < {}: pass"
MB = 1 << 20


@pytest.fixture
async def engine(shed_home: Path) -> AsyncIterator[NativeEngine]:
    made = NativeEngine(shed_home, images=Images(shed_home))
    yield made
    await made.close()


async def test_an_account_has_time_memory_and_disk_after_the_sandbox_closed(engine: NativeEngine) -> None:
    """CPU of foreground and orphaned commands, the largest process, what lies on disk, and how long it stood."""
    box = await engine.create(SPEC, SandboxPolicy())
    assert box.used().cpu_s == 0.0
    await box.exec(["python3", "-c", f"b = bytearray({64 * MB}); {BUSY.format(0.2)}"])
    assert 0.2 <= (box.used().cpu_s or 0) < 5
    orphan = f"python3 -c '{BUSY.format(0.2)}'; touch /tmp/done"
    await box.exec(f'(setsid sh -c "{orphan}" &); until [ -e /tmp/done ]; do sleep 0.02; done')
    await box.exec(["dd", "if=/dev/zero", "of=/workspace/kept", "bs=1M", "count=3"])
    await box.kill_all()
    assert 0.4 <= (box.used().cpu_s or 0) < 10
    await box.close()
    used = box.used()
    assert (used.memory_peak_bytes or 0) >= 64 * MB
    assert 3 * MB <= (used.disk_bytes or 0) < 8 * MB
    assert used.sandboxes == 1
    assert used.sandbox_s > 0.4
    assert box.used() == used, "a closed account changes no more"


async def test_a_sandbox_that_wrote_nothing_used_no_disk(engine: NativeEngine) -> None:
    """Its disk is 0, which is known; the peak of memory is unknown, for nothing was started."""
    box = await engine.create(SPEC, SandboxPolicy())
    await box.close()
    assert (box.used().disk_bytes, box.used().memory_peak_bytes, box.used().cpu_s) == (0, None, 0.0)


@pytest.mark.skipif(
    "memory" not in cgroups.control().parents, reason="memory cgroups are not ours to make here: run as root"
)
async def test_the_peak_of_a_sandbox_with_a_group_is_of_all_processes_together(engine: NativeEngine) -> None:
    """Two processes of 40 MB each have a peak of 80 MB together where a control group counts them."""
    box = await engine.create(SPEC, SandboxPolicy(limits=Limits(memory_mb=400)))
    hold = "import time; b = bytearray(b'x' * (40 << 20)); print(len(b), flush=True); time.sleep(60)"
    told: list[bytes] = []
    for _ in range(2):
        await box.start(["python3", "-c", hold], stream=lambda _name, data: told.append(data))
    while b"".join(told).count(b"\n") < 2:
        await box.exec("true")
    await box.close()
    assert 80 * MB <= (box.used().memory_peak_bytes or 0) <= 400 * MB
