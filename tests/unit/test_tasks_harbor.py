"""What Harbor's folders may say beyond a plain task, each in its place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from woodshed.errors import UsageError
from woodshed.model import Agent, Limits, SandboxPolicy
from woodshed.model.network import HostRule, NetworkPolicy
from woodshed.tasks import load_task

REWARD = "echo 1 > /logs/verifier/reward.txt\n"
PUBLIC = NetworkPolicy(rules=(HostRule(host="*"),))


def made(folder: Path, toml: str, files: Mapping[str, str] | None = None) -> Path:
    base = {"instruction.md": "Do it.\n", "tests/test.sh": REWARD, "environment/workspace/a": "a\n", "task.toml": toml}
    for name, content in {**base, **(files or {})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


STEPS = """
multi_step_reward_strategy = "final"
artifacts = ["/data"]
[agent]
timeout_sec = 30
[verifier]
timeout_sec = 11
env = {A = "1", B = "1"}
[[verifier.collect]]
command = "all"
[solution]
env = {S = "s"}
[[steps]]
name = "one"
min_reward = 0.5
[[steps]]
name = "two"
min_reward = {reward = 1, style = 0.2}
artifacts = ["/more"]
[steps.agent]
timeout_sec = 40
[steps.verifier]
timeout_sec = 22
env = {B = "2"}
user = "judge"
[[steps.verifier.collect]]
command = "own"
timeout_sec = 5
user = 1000
[steps.healthcheck]
command = "true"
[woodshed.steps.two]
expected_tests = ["test_a::test_b"]
framework = "pytest"
"""


def test_steps_say_what_the_task_says_and_more(tmp_path: Path) -> None:
    """A step's own words stand above the task's; its tests above the common ones; its setup is found by its name."""
    task = load_task(made(tmp_path / "t", STEPS, {
        "steps/one/instruction.md": "One.\n", "solution/solve.sh": "common\n",
        "steps/two/instruction.md": "Two.\n", "steps/two/tests/test_a.py": "x", "steps/two/workdir/setup.sh": "x",
        "steps/two/solution/solve.sh": "own\n",
    }))
    one, two = task.steps
    assert (one.name, one.instruction, one.agent_timeout_s, one.min_reward) == ("one", "One.\n", 30, {"reward": 0.5})
    assert (two.name, two.instruction, two.agent_timeout_s) == ("two", "Two.\n", 40)
    assert two.min_reward == {"reward": 1.0, "style": 0.2}
    assert (one.workdir, one.setup, two.workdir, two.setup) == (None, False, tmp_path / "t/steps/two/workdir", True)
    assert (one.solution, two.solution) == (tmp_path / "t/solution", tmp_path / "t/steps/two/solution")
    assert (one.verifier.tests, one.verifier.common_tests) == (tmp_path / "t/tests", None)
    assert (two.verifier.tests, two.verifier.common_tests) == (tmp_path / "t/steps/two/tests", tmp_path / "t/tests")
    assert (one.verifier.timeout_s, one.verifier.env) == (11, {"A": "1", "B": "1"})
    assert (two.verifier.timeout_s, two.verifier.env, two.verifier.user) == (22, {"A": "1", "B": "2"}, "judge")
    assert [row.command for row in two.verifier.collect] == ["all", "own"]
    assert two.verifier.collect[1].user == "1000"
    assert one.verifier.capture == ("/workspace", "/logs/artifacts", "/data")
    assert two.verifier.capture == ("/workspace", "/logs/artifacts", "/data", "/more")
    assert (one.verifier.expected_tests, two.verifier.expected_tests) == ((), ("test_a::test_b",))
    assert two.healthcheck is not None
    assert task.step_reward == "final"
    assert (task.instruction, task.verifier, task.solution) == (two.instruction, two.verifier, two.solution)


def test_the_task_of_a_step_has_the_files_of_those_before(tmp_path: Path) -> None:
    """What earlier steps brought lies in the verifier's world of a later one; nothing else of a step does."""
    task = load_task(made(tmp_path / "t", '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n', {
        "steps/a/instruction.md": "A", "steps/a/workdir/x": "x",
        "steps/b/instruction.md": "B", "steps/b/workdir/y": "y",
    }))
    assert [upload.source.name for upload in task.environment.uploads] == ["workspace"]
    at = [[upload.source.parent.name for upload in task.at(index).environment.uploads] for index in (0, 1)]
    assert at == [["environment", "a"], ["environment", "a", "b"]]
    assert (task.at(0).instruction, task.at(1).instruction, task.at(0).steps) == ("A", "B", ())


@pytest.mark.parametrize(("toml", "field"), [
    ('[[steps]]\nname = "a"\n[[steps]]\nname = "A"\n', "steps.1.name"),
    ('[[steps]]\nname = "a"\n[steps.agent]\nuser = "x"\n', "steps.0.agent.user"),
    ('[[steps]]\nname = "a"\n[steps.agent]\nnetwork_mode = "public"\n', "steps.0.agent.network_mode"),
    ('[[steps]]\nname = "a"\n[steps.verifier.environment]\nos = "windows"\n', "steps.0.verifier.environment.os"),
    ('[[steps]]\nname = "a"\nartifacts = [{source = "/a", service = "db"}]\n', "steps.0.artifacts.0.service"),
    ('[[steps]]\nname = "a"\n[steps.verifier]\nenv = {K = "${X}"}\n', "steps.0.verifier.env.K"),
    ('[[steps]]\nname = "a"\n[woodshed.steps.b]\nprotected = ["x"]\n', "woodshed.steps.b"),
])  # fmt: skip
def test_what_a_step_cannot_have_is_refused_by_name(tmp_path: Path, toml: str, field: str) -> None:
    """Another user, another network, another system or service than the task's: none is ignored."""
    folder = made(tmp_path / "t", toml, {"steps/a/instruction.md": "A"})
    with pytest.raises(UsageError) as caught:
        load_task(folder)
    assert (str(caught.value.file), caught.value.field) == (str(folder / "task.toml"), field)
    assert caught.value.remedy


def test_broken_steps_are_named(tmp_path: Path) -> None:
    """A step without an instruction, without tests anywhere, or with history in its files is refused by its path."""
    toml = '[[steps]]\nname = "a"\n'
    folder = made(tmp_path / "t", toml, {"steps/a/workdir/.git/HEAD": "x"})
    with pytest.raises(UsageError, match="version control data"):
        load_task(folder)
    (folder / "steps/a/workdir/.git/HEAD").unlink()
    (folder / "steps/a/workdir/.git").rmdir()
    with pytest.raises(UsageError, match=r"steps/a/instruction\.md: missing"):
        load_task(folder)
    (folder / "steps/a/instruction.md").write_text("A")
    load_task(folder)
    (folder / "tests/test.sh").unlink()
    with pytest.raises(UsageError, match="no tests"):
        load_task(folder)
    (folder / "tests/test.sh").touch()
    (folder / "steps/a/workdir").rmdir()
    (folder / "steps/a/workdir").symlink_to("../../tests")
    with pytest.raises(UsageError, match="a link in the place"):
        load_task(folder)
    (folder / "steps/a/workdir").unlink()
    (folder / "task.toml").write_text(toml + '[woodshed]\nworkspace = "steps"\n')
    with pytest.raises(UsageError, match="the attempt would see steps"):
        load_task(folder)
    (folder / "task.toml").write_text(toml)
    (folder / "steps/a/solution").mkdir()
    (folder / "steps/a/solution/x").touch()
    with pytest.raises(UsageError, match=r"no solve\.sh"):
        load_task(folder)


@pytest.mark.parametrize(("toml", "agent", "verifier"), [
    ("", NetworkPolicy(), NetworkPolicy()),
    ('[environment]\nnetwork_mode = "public"', PUBLIC, PUBLIC),
    ("[environment]\nallow_internet = true", PUBLIC, PUBLIC),
    ('[environment]\nnetwork_mode = "public"\n[verifier]\nnetwork_mode = "no-network"', PUBLIC, NetworkPolicy()),
    ('[environment]\nnetwork_mode = "public"\n[woodshed]\nnetwork = "none"', NetworkPolicy(), NetworkPolicy()),
    ('[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["PyPI.org.", "*.example.com", "pypi.org"]',
     NetworkPolicy(rules=(HostRule(host="pypi.org"), HostRule(host="*.example.com"))), NetworkPolicy()),
    ('[environment]\nnetwork_mode = "public"\n[verifier.environment]\nnetwork_mode = "no-network"', PUBLIC,
     NetworkPolicy()),
])  # fmt: skip
def test_declared_hosts_become_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toml: str, agent: NetworkPolicy, verifier: NetworkPolicy
) -> None:
    """A phase's own word stands above the environment's; a task that is silent has no network.

    One that asks for a network is refused unless the operator lends it.
    """
    folder = made(tmp_path / "t", toml)
    if agent or verifier:
        with pytest.raises(UsageError, match="a task cannot give itself a network"):
            load_task(folder)
    else:
        load_task(folder)
    monkeypatch.setenv("WOODSHED_TASK_NETWORK", "declared")
    task = load_task(folder)
    assert (task.network, task.verifier.network) == (agent, verifier)


def test_a_verifier_may_have_a_world_of_its_own(tmp_path: Path) -> None:
    """Its image is its own, that of a Dockerfile beside the tests, or the agent's; only artifacts cross over."""
    toml = 'artifacts = ["/out"]\n[verifier.environment]\nmemory_mb = 100\nworkdir = "/w"\n'
    world = load_task(made(tmp_path / "a", toml)).verifier
    assert world.environment is not None
    assert (world.environment.image, world.environment.workdir) == ("host", "/w")
    assert (world.environment.limits.memory_mb, world.capture) == (100, ("/logs/artifacts", "/out"))
    assert [upload.target for upload in world.environment.uploads] == ["/w"]
    world = load_task(made(tmp_path / "b", toml + 'docker_image = "python:3.12"\n')).verifier
    assert world.environment is not None
    assert (world.environment.image, world.environment.uploads) == ("docker://python:3.12", ())
    files = {"tests/Dockerfile": "FROM scratch\nWORKDIR /app\n"}
    world = load_task(made(tmp_path / "c", '[verifier]\nenvironment_mode = "separate"\n', files)).verifier
    assert world.environment is not None
    assert world.environment.image == f"dockerfile:{tmp_path}/c/tests/Dockerfile"
    assert load_task(made(tmp_path / "d", '[verifier]\nenvironment_mode = "separate"\n')).verifier.environment is None


def test_variables_of_the_host_are_lent_by_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template is filled in only where the operator lends that variable, and only when a sandbox opens."""
    toml = '[environment]\nenv = {A = "${SECRET_A:-none}"}\n[verifier]\nenv = {B = "${SECRET_B:-no}"}\n'
    folder = made(tmp_path / "t", toml)
    monkeypatch.setenv("SECRET_A", "sesame")
    monkeypatch.setenv("SECRET_B", "open")
    assert load_task(folder).environment.env == {"A": "none"}
    monkeypatch.setenv("WOODSHED_TASK_ENV", "SECRET_A, SECRET_C")
    task = load_task(folder)
    assert (task.environment.env, task.verifier.env) == ({"A": "${SECRET_A}"}, {"B": "no"})
    assert "sesame" not in repr(task)
    assert task.lent({"SECRET_A": "sesame"}).environment.env == {"A": "sesame"}
    (folder / "task.toml").write_text('[solution]\nenv = {C = "${SECRET_C}"}\n')
    with pytest.raises(UsageError, match="SECRET_C is not set here"):
        load_task(folder)
    monkeypatch.setenv("SECRET_C", "x")
    assert load_task(folder).lent({"SECRET_C": "x"}).solution_env == {"C": "x"}
    plain = load_task(made(tmp_path / "p", ""))
    assert plain.lent({}) is plain


def test_an_agents_policy_has_the_tasks_hosts_beside_its_own() -> None:
    """The agent's own rule for a host decides; without a task's hosts its policy is as it was."""
    own = HostRule(host="pypi.org", ports=(443,))
    agent = Agent(name="a", harness="nop", policy=SandboxPolicy(network=NetworkPolicy(rules=(own,))))
    declared = NetworkPolicy(rules=(HostRule(host="pypi.org"), HostRule(host="example.com")))
    assert agent.policy_within(Limits(), declared).network.rules == (own, HostRule(host="example.com"))
    assert agent.policy_within(Limits(), NetworkPolicy()).network.rules == (own,)


def test_users_checks_and_collected_state_are_read(tmp_path: Path) -> None:
    """Who acts, who judges, what is asked before and what is run after stand in the records."""
    task = load_task(made(tmp_path / "t", """
artifacts = [{source = "out", exclude = ["*.log"]}]
[agent]
user = 1000
[verifier]
user = "root"
[[verifier.collect]]
command = "dump > /logs/artifacts/db"
[environment.healthcheck]
command = "ready"
interval_sec = 1
retries = 7
start_period_sec = 2
"""))
    assert (task.environment.user, task.verifier.user) == ("1000", "root")
    check = task.environment.healthcheck
    assert check is not None
    assert (check.command, check.interval_s, check.retries, check.start_period_s) == ("ready", 1, 7, 2)
    assert task.verifier.collect[0].command == "dump > /logs/artifacts/db"
    assert task.verifier.left_out == {"/workspace/out": ("*.log",)}
    assert "/logs/artifacts" in task.verifier.capture
