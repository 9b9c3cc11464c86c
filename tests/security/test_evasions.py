"""Known evasions, said honestly: what an assurance does not see, and which one does. See docs/verification.md."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cheatbench import Bench
from cheatgrounds import NODE_PROBES, PROBES, REFERENCE, Ground, make_ground
from woodshed.errors import Cause
from woodshed.harness.cheats import CHEATS, holds
from woodshed.model import Assurance, Task, Valid
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.verify.verifier import FreshVerifier

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVASIONS = [name for name, cheat in CHEATS.items() if not holds(Assurance.CANARY, cheat.stopped)]
HELPED = (("helper.py", "def same(found, wanted):\n    assert found == wanted\n"),
          ("check_add.py", "from calc import add\nfrom helper import same\nsame(add(2, 2), 4)\n"),
          ("check_add_negative.py", "from calc import add\nfrom helper import same\nsame(add(2, -2), 0)\n"))


def ground(name: str, **more: Any) -> Ground:
    """Where an evasion is tried."""
    kind = "node" if name.startswith("node-") else "script"
    hidden = HELPED if name == "assert-helpers" else ()
    return Ground(kind, (*hidden, *more.items()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(shed_home: Path) -> AsyncIterator[Bench]:
    engine = NativeEngine(shed_home)
    yield Bench(engine)
    await engine.close()


async def judged(bench: Bench, task: Task, name: str, *, poison: bool = False) -> Valid:
    bench.verifier = FreshVerifier(poison=poison)
    verdict = (await bench.attempt(task, name)).verdict
    assert isinstance(verdict, Valid)
    if "not_runnable" in verdict.flags:
        pytest.skip("needs node in /usr/bin (apt-get install nodejs)")
    return verdict


@pytest.mark.parametrize("name", EVASIONS)
async def test_an_evasion_passes_a_canary_and_not_what_stops_it(bench: Bench, tmp_path: Path, name: str) -> None:
    """Without probes it earns 1 at assurance canary, which is the control; with probes a valid 0 and its flag."""
    cheat, probes = CHEATS[name], NODE_PROBES if name.startswith("node-") else PROBES
    bare = make_ground(tmp_path / "bare", ground(name))
    fooled = await judged(bench, bare, f"cheat:{name}")
    assert (fooled.total, fooled.assurance, fooled.flags) == (1.0, Assurance.CANARY, ())
    assert (await bench.naive(bare, f"cheat:{name}"))["report"]

    probed = make_ground(tmp_path / "probed", ground(name, probes=probes))
    verdict = await judged(bench, probed, f"cheat:{name}")
    assert (verdict.total, verdict.cause, verdict.assurance) == (0.0, Cause.AGENT, Assurance.OUT_OF_PROCESS)
    assert verdict.flags == ("probe_failed",)
    assert set(verdict.rewards.values()) == {0.0}
    assert "probe_failed" in cheat.flags


@pytest.mark.parametrize("name", [name for name in EVASIONS if not name.startswith("node-")])  # node has no poison
async def test_which_evasions_the_poisoned_run_finds_out(bench: Bench, tmp_path: Path, name: str) -> None:
    """A flip of reports is found out by tests made false; what truly satisfies the tests is not."""
    verdict = await judged(bench, make_ground(tmp_path, ground(name)), f"cheat:{name}", poison=True)
    assert verdict.assurance is Assurance.POISONED
    if holds(Assurance.POISONED, CHEATS[name].stopped):
        assert (verdict.total, verdict.cause, verdict.flags) == (0.0, Cause.TAMPER, ("tamper:poison_passed",))
    else:
        assert (verdict.total, verdict.flags) == (1.0, ())


@pytest.mark.parametrize("name", ["selective-flip", "report-complete"])
async def test_poison_is_found_out_where_there_is_one_test(bench: Bench, tmp_path: Path, name: str) -> None:
    """A single check is made false where the code that it loads has had its chance to cheat, not before."""
    several = make_ground(tmp_path, Ground("script"))
    verifier = several.verifier.model_copy(update={"expected_tests": ("check_add",)})
    lone = several.model_copy(update={"verifier": verifier})
    assert (await judged(bench, lone, f"cheat:{name}")).total == 1.0
    verdict = await judged(bench, lone, f"cheat:{name}", poison=True)
    assert (verdict.total, verdict.flags) == (0.0, ("tamper:poison_passed",))
    assert (await bench.judge(lone, REFERENCE)).passed


async def test_the_selective_flip_in_pytest(bench: Bench, tmp_path: Path) -> None:
    """pytest's own reports are flipped in the same way: 1 at a canary, found out by poison, and nothing with probes."""
    bare = make_ground(tmp_path / "bare", Ground())
    assert (await judged(bench, bare, "cheat:selective-flip")).total == 1.0
    verdict = await judged(bench, bare, "cheat:selective-flip", poison=True)
    assert (verdict.total, verdict.flags) == (0.0, ("tamper:poison_passed",))
    probed = make_ground(tmp_path / "probed", Ground(more=(("probes", PROBES), ("rewards", {"sum": ("probe::adds",)}))))
    verdict = await judged(bench, probed, "cheat:selective-flip")
    assert (verdict.total, verdict.rewards["sum"], verdict.flags) == (0.0, 0.0, ("probe_failed",))
    assert (await bench.judge(probed, REFERENCE)).assurance is Assurance.OUT_OF_PROCESS


async def test_probes_see_what_they_ask_and_no_more(bench: Bench, tmp_path: Path) -> None:
    """The evasion that is left: a program that answers the probes' own questions by heart, and no other."""
    task = make_ground(tmp_path, ground("equal-to-all", probes=PROBES))
    guess = "cat > calc.py <<'E'\ndef add(a, b):\n    return {(2, 2): 4, (2, -2): 0, (20, 3): 23}[a, b]\n\n\n" \
            "def mul(a, b):\n    return a * b\nE\n"
    assert (await bench.judge(task, guess)).passed
