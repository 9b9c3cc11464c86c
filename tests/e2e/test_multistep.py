"""Harbor's folders whole: steps, health checks, users, collected state, verifiers with a world of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kit import leftovers, run_json, woodshed
from woodshed.model import Valid
from woodshed.services.home import opened

REWARD = "#!/bin/bash\nmkdir -p /logs/verifier\n{check} && echo 1 > /logs/verifier/reward.txt || " \
         "echo 0 > /logs/verifier/reward.txt\n"


def folder(place: Path, files: Mapping[str, str]) -> Path:
    """A task folder of text files."""
    for name, content in {"instruction.md": "Do it.\n", **files}.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return place


def judged_by(check: str) -> str:
    """A test.sh that gives 1 where ``check`` succeeds."""
    return REWARD.format(check=check)


STEPS = {
    "task.toml": 'schema_version = "1.4"\n[agent]\ntimeout_sec = 60\n[[steps]]\nname = "begin"\n'
                 'min_reward = 1.0\n[[steps]]\nname = "finish"\n',
    "environment/workspace/given.txt": "given\n",
    "tests/common.sh": "said() { test \"$(cat $1)\" = \"$2\"; }\n",
    "steps/begin/instruction.md": "Write first into one.txt.\n",
    "steps/begin/tests/test.sh": judged_by(". /tests/common.sh; said one.txt first && said given.txt given"),
    "steps/begin/solution/solve.sh": "printf first > one.txt\n",
    "steps/finish/instruction.md": "Write second into two.txt.\n",
    "steps/finish/workdir/more.txt": "more\n",
    "steps/finish/workdir/setup.sh": "test ! -e /solution && cat one.txt more.txt > seen.txt\n",
    "steps/finish/tests/test.sh": judged_by(". /tests/common.sh; said two.txt second && said seen.txt firstmore"),
    "steps/finish/solution/solve.sh": "printf second > two.txt\n",
}
ASKED = {
    **STEPS,
    "task.toml": STEPS["task.toml"] + '[woodshed.steps.finish.probes.both]\nargv = ["cat", "one.txt", "two.txt"]\n'
                                      'stdout = "firstsecond"\n',
}
HEALTHY = {
    "task.toml": '[environment.healthcheck]\ncommand = "test -e count2 || { test -e count1 && touch count2; '
                 'touch count1; false; }"\ninterval_sec = 0.01\nretries = 3\n',
    "environment/workspace/a": "a\n",
    "tests/test.sh": judged_by("test -e done"),
    "solution/solve.sh": "touch done\n",
}
SICK = {**HEALTHY, "task.toml": '[environment.healthcheck]\ncommand = "echo no; false"\ninterval_sec = 0.01\n'}
COLLECTED = {
    "task.toml": '[[verifier.collect]]\ncommand = "ps -e | grep -c sleeping > /logs/artifacts/running; true"\n'
                 '[[verifier.collect]]\ncommand = "exit 7"\n[agent]\ntimeout_sec = 20\n',
    "environment/workspace/a": "a\n",
    "tests/test.sh": judged_by("grep -q 1 /logs/artifacts/running"),
    "solution/solve.sh": "mkdir -p /logs/artifacts\ncp $(command -v sleep) sleeping\n./sleeping 60 >/dev/null 2>&1 &\n",
}
APART = {
    "task.toml": 'artifacts = ["/data", {source = "/logs/artifacts", exclude = ["*.log"]}]\n'
                 '[verifier.environment]\nworkdir = "/judging"\nenv = {MODE = "judge"}\n'
                 '[environment]\nenv = {MODE = "act"}\n',
    "environment/workspace/a": "a\n",
    "tests/test.sh": judged_by('test "$(cat /data/sub/x)" = whole && test "$(readlink /data/link)" = sub/x && '
                               'test "$MODE" = judge && test ! -e /workspace/a && test ! -e /logs/artifacts/b.log && '
                               "test -e /logs/artifacts/b.txt && test -x /data/sub/x"),
    "solution/solve.sh": 'test "$MODE" = act || exit 1\nmkdir -p /data/sub /logs/artifacts\n'
                         "printf whole > /data/sub/x\nchmod 755 /data/sub/x\nln -s sub/x /data/link\n"
                         "touch /logs/artifacts/b.log /logs/artifacts/b.txt\n",
}
USERS = {
    "task.toml": '[agent]\nuser = "nobody"\n[verifier]\nuser = 65534\n',
    "environment/workspace/a": "a\n",
    "tests/test.sh": "#!/bin/bash\ntest $(id -u) = 65534 && test \"$(cat who)\" = 65534 && "
                     "echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "id -u > who && echo b > a && ! touch /etc/x 2>/dev/null\n",
}
BLOCKED = {
    **STEPS,
    "task.toml": '[[steps]]\nname = "begin"\n[[steps]]\nname = "finish"\n',
    "steps/finish/workdir/setup.sh": "cat one.txt more.txt > seen.txt\n",
}
LENT = {
    "task.toml": '[environment]\nenv = {TOKEN = "${FORMATS_TOKEN}", OTHER = "${FORMATS_OTHER:-none}"}\n',
    "environment/workspace/a": "a\n",
    "tests/test.sh": judged_by('test "$(cat seen)" = "19 none" && test ${#TOKEN} = 19'),
    "solution/solve.sh": 'echo "${#TOKEN} $OTHER" > seen\n',
}
TOKEN = "sesame-0123456789ab"
UNREADY = {**BLOCKED, "steps/finish/workdir/setup.sh": "exit 3\n"}
TASKS = {"steps": STEPS, "asked": ASKED, "healthy": HEALTHY, "sick": SICK, "collected": COLLECTED, "apart": APART,
         "users": USERS, "blocked": BLOCKED, "unready": UNREADY, "lent": LENT}


@pytest.fixture(scope="module")
def home(new_home: Callable[[], Path]) -> Path:
    """A state folder of the module's own."""
    return new_home()


@pytest.fixture(scope="module")
def found(home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """What one run of all tasks by oracle and nop came to, by task and agent."""
    tasks = tmp_path_factory.mktemp("tasks")
    for name, files in TASKS.items():
        folder(tasks / name, files)
    lent = {"WOODSHED_TASK_ENV": "FORMATS_TOKEN", "FORMATS_TOKEN": TOKEN, "FORMATS_OTHER": TOKEN}
    summary = run_json(tasks, "--agent", "oracle", "--agent", "nop", home=home, env=lent)
    shown = json.loads(woodshed("show", summary["run"], "--json", home=home).stdout)
    return {(row["task"], row["agent"]): row for row in shown["results"]}


Found = dict[tuple[str, str], dict[str, Any]]


def test_steps_follow_each_other_in_one_sandbox(found: Found) -> None:
    """The reference passes both steps; doing nothing stops at the first, which asks for a reward."""
    oracle, nop = found["steps", "oracle"], found["steps", "nop"]
    assert oracle["rewards"] == {"reward": 1.0, "begin/reward": 1.0, "finish/reward": 1.0}
    assert (nop["total"], nop["rewards"]) == (0.0, {"reward": 0.0, "begin/reward": 0.0})
    assert "not reached: finish" in nop["detail"]
    assert (oracle["tool_calls"], oracle["passed"]) == (2, True)


def test_a_step_is_asked_its_probes(found: Found, home: Path) -> None:
    """After the step that has them, beside its tests, in the state that all steps made."""
    oracle = found["asked", "oracle"]
    with opened(home) as state:
        outcome = state.store.attempt(oracle["attempt"]).outcome
    assert oracle["passed"]
    assert outcome is not None
    assert isinstance(outcome.verdict, Valid)
    assert outcome.verdict.tests == {"finish/probe::both": "passed"}


@pytest.mark.parametrize("name", ["healthy", "collected", "apart"])
def test_the_world_is_as_declared(name: str, found: Found) -> None:
    """Health checks are waited for, live state is collected, a verifier's own world gets the artifacts alone."""
    assert (found[name, "oracle"]["total"], found[name, "nop"]["total"]) == (1.0, 0.0), found[name, "oracle"]


@pytest.mark.parametrize("agent", ["oracle", "nop"])
def test_a_world_that_is_never_ready_is_nobodys_failure(agent: str, found: Found) -> None:
    """A health check that fails too often makes the attempt invalid, and the environment its cause."""
    row = found["sick", agent]
    assert (row["valid"], row["cause"]) == (False, "environment")
    assert "health check failed 3 times" in row["detail"]


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's sandboxes may have one user; run the tests as root")
def test_users_act_and_judge(found: Found) -> None:
    """The agent acts as its user, in a folder that is its own, and test.sh runs as the verifier's."""
    assert (found["users", "oracle"]["total"], found["users", "nop"]["total"]) == (1.0, 0.0), found["users", "oracle"]


def test_a_step_that_cannot_begin_is_the_agents_doing_or_the_tasks(found: Found) -> None:
    """Where the references of earlier steps let a step begin, the agent kept it from that; else the task did."""
    agents, tasks = found["blocked", "nop"], found["unready", "nop"]
    assert (agents["valid"], agents["total"], agents["cause"]) == (True, 0.0, "agent")
    assert "setup_failed" in agents["flags"]
    assert found["blocked", "oracle"]["total"] == 1.0
    assert (tasks["valid"], tasks["cause"]) == (False, "environment")
    assert "setup.sh of the step finish failed (exit status 3)" in tasks["detail"]


def test_a_variable_of_the_host_is_lent_and_recorded_nowhere(found: Found, home: Path) -> None:
    """What the operator lends is there inside, what he does not is not, and no file of ours has the value."""
    assert (found["lent", "oracle"]["total"], found["lent", "nop"]["total"]) == (1.0, 0.0)
    told = [path for path in home.rglob("*") if path.is_file() and not path.is_symlink() and "layers" not in path.parts]
    assert told
    assert [path for path in told if TOKEN.encode() in path.read_bytes()] == []


def test_nothing_is_left(found: Found, home: Path) -> None:
    """Steps, checks and collecting leave no process, mount or folder behind."""
    assert leftovers(home) == []
