"""Which cheats a task is tried with: by its framework, by what stands in its workspace, by its assurance."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cheatbench import START, make_task
from cheatgrounds import NODE, PLAIN, PROBES, SCRIPT, make_ground
from kit import EXAMPLES, agent_row, run_json, woodshed
from woodshed import plugins
from woodshed.harness.cheats import CHEATS, Need, Surface, holds, reached
from woodshed.model import Assurance, EnvironmentSpec, Framework, Task
from woodshed.tasks.load import load_task


def test_a_surface_is_read_off_the_folders(tmp_path: Path) -> None:
    """Framework, languages of the source, and whether the start has tests; hidden folders are nobody's source."""
    assert Surface.of(make_ground(tmp_path / "a", PLAIN)) == Surface(Framework.PYTEST, python=True, tests=True)
    assert Surface.of(make_ground(tmp_path / "b", NODE)) == Surface(Framework.NODE, node=True)
    bare = make_task(tmp_path / "c", start={"tests/test_a.py": "", "notes.txt": "", ".venv/lib.py": ""})
    assert Surface.of(bare) == Surface(Framework.PYTEST, tests=True)
    unknown = make_task(tmp_path / "d", hidden={"test.sh": "exit 1\n"}, start={"a.sh": ""}, expected=())
    assert Surface.of(unknown) == Surface(None)
    image = unknown.model_copy(update={"environment": EnvironmentSpec(image="dir:/nowhere")})
    assert Surface.of(image) == Surface(None)


def task_of(folder: Path, assurance: Assurance) -> Task:
    """A task whose plain verification reaches ``assurance``."""
    if assurance is Assurance.REPORT_ONLY:
        return make_task(folder, expected=())
    return make_task(folder, probes=PROBES if assurance is Assurance.OUT_OF_PROCESS else ())


@pytest.mark.parametrize("assurance", [Assurance.REPORT_ONLY, Assurance.CANARY, Assurance.OUT_OF_PROCESS])
def test_a_task_is_tried_with_what_its_assurance_must_stop(tmp_path: Path, assurance: Assurance) -> None:
    """The more a verdict is worth, the more cheats must earn nothing; a verifier may be held to more by name."""
    task = task_of(tmp_path, assurance)
    assert reached(task) is assurance
    names = [name.removeprefix("cheat:") for name in plugins.cheats(task)]
    assert names == [name for name, cheat in CHEATS.items()
                     if cheat.fits(Surface.of(task)) and holds(assurance, cheat.stopped)]
    assert set(names) < set(CHEATS)
    every = plugins.cheats(task, Assurance.OUT_OF_PROCESS)
    assert len(every) >= len(names)
    assert ("selective-flip" in names) is (assurance is Assurance.OUT_OF_PROCESS)
    assert {"cheat:selective-flip"} & set(plugins.cheats(task, Assurance.POISONED)) == {"cheat:selective-flip"}
    slow = {f"cheat:{name}" for name, cheat in CHEATS.items() if cheat.slow}
    assert set(plugins.cheats(task)) - set(plugins.cheats(task, slow=False)) <= slow
    assert not slow & set(plugins.cheats(task, slow=False))


def test_no_cheat_is_offered_what_it_cannot_use(tmp_path: Path) -> None:
    """Without source nothing is injected, without tests none are edited, and each framework has its own."""
    bare = make_task(tmp_path / "a", start={"notes.txt": ""})
    assert {CHEATS[name.removeprefix("cheat:")].need for name in plugins.cheats(bare)} == {Need.NOTHING}
    script = plugins.cheats(make_ground(tmp_path / "b", SCRIPT))
    assert "cheat:runner-patch" in script
    assert "cheat:conftest-hook" not in script
    node = plugins.cheats(make_ground(tmp_path / "c", NODE))
    assert {"cheat:node-exit", "cheat:seek-reference"} <= set(node)
    assert "cheat:exit-on-import" not in node
    unknown = plugins.cheats(make_task(tmp_path / "d", start=START, hidden={"test.sh": "exit 1\n"}, expected=()))
    assert set(unknown) >= {"cheat:seek-reference", "cheat:absolute-link"}
    assert not set(unknown) & {"cheat:conftest-hook", "cheat:node-exit", "cheat:hang"}


@pytest.mark.parametrize("name", CHEATS)
def test_a_script_is_a_script(tmp_path: Path, name: str) -> None:
    """Whatever ids and paths a task has, what a cheat runs is shell that parses."""
    odd = ("it's::a \"quoted\" <test> & $more [`x`]", "tests.test_add::test_ä")
    text = CHEATS[name].text(make_task(tmp_path, expected=odd))
    done = subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_examples_with_probes_are_there() -> None:
    """At least two of the examples ask their programs, and are tried with every evasion that fits them."""
    probed = [task for folder in sorted(EXAMPLES.glob("*/*"))
              if (task := load_task(folder)).verifier.probes]
    assert len(probed) >= 2
    for task in probed:
        assert {"cheat:selective-flip", "cheat:equal-to-all"} <= set(plugins.cheats(task))


def test_cheats_are_agents_of_the_command_line(shed_home: Path) -> None:
    """A run of cheats ends with valid attempts that earned nothing; without a name the command lists all there are."""
    task = EXAMPLES / "first-steps" / "fix-line"
    agents = ("cheat:conftest-hook", "cheat:equal-to-all")
    summary = run_json(task, *(word for agent in agents for word in ("--agent", agent)), home=shed_home)
    for agent in agents:
        row = agent_row(summary, agent)
        assert (row["attempts"], row["valid"], row["passed"]) == (1, 1, 0)
    told = woodshed("run", task, "--agent", "cheat", home=shed_home)
    assert told.returncode == 2
    assert all(name in told.stderr.replace("\n", " ") for name in ("conftest-hook", "equal-to-all", "node-exit"))
