"""What broke by no one's doing is tried again in a fresh sandbox, within its rules; a failed agent never is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import EXAMPLES, woodshed
from woodshed import plugins
from woodshed.errors import Cause, EnvironmentFault, Paused
from woodshed.model import Attempt, EnvironmentSpec, Invalid, RunState, SandboxPolicy, Valid
from woodshed.model.retry import BreakerRule, RetryRule, RetryRules
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.services import agents, runs
from woodshed.services.home import Home, opened
from woodshed.services.runs import Tally
from woodshed.store import ExecutionState

TASK = EXAMPLES / "first-steps" / "write-file"
AT_ONCE = RetryRules(retry=(RetryRule(max=2, backoff_s=0.0),), breaker=None)


class Refusing(NativeEngine):
    """An engine that refuses the sandboxes whose numbers (from 0) are in ``refused``."""

    refused: frozenset[int] | range = frozenset()
    asked = 0

    async def create(self, spec: EnvironmentSpec, policy: SandboxPolicy, **how: Any) -> NativeSandbox:
        """Like any engine, but for the refused ones."""
        number, Refusing.asked = Refusing.asked, Refusing.asked + 1
        if number in Refusing.refused:
            raise EnvironmentFault(f"no room for sandbox {number}")
        return await super().create(spec, policy, **how)


@pytest.fixture
def home(shed_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """The session's home, whose runs take their sandboxes from a refusing engine."""
    monkeypatch.setattr(plugins, "engine", lambda name, path: Refusing(path))
    Refusing.asked = 0
    with opened(shed_home) as home:
        yield home


async def tried(
    home: Home, agent: str, rules: RetryRules, refused: frozenset[int] | range, attempts: int = 2
) -> list[Attempt]:
    """The attempts of a run, one at a time, whose sandboxes are refused as said."""
    Refusing.refused = refused
    spec, tasks = runs.plan([TASK], agents.build([agent], None), attempts=attempts, concurrency=1, seed=0,
                            engine="native", retry=rules)
    run = await runs.start(home, spec, tasks, ignore)
    return home.store.attempts(run.id)


def ignore(tally: Tally) -> None:
    """Nobody looks."""


async def test_a_refused_sandbox_is_tried_again(home: Home) -> None:
    """Two refusals cost two executions, kept as evidence with what broke and where; all are valid in the end."""
    found = await tried(home, "oracle", AT_ONCE, frozenset({0, 1}))
    for attempt in found:
        assert attempt.outcome is not None
        assert isinstance(attempt.outcome.verdict, Valid), attempt.outcome
    executions = [execution for attempt in found for execution in home.store.executions(attempt.id)]
    assert len(executions) == 4
    lost = [execution for execution in executions if execution.state is ExecutionState.SET_ASIDE]
    assert len(lost) == 2
    for execution in lost:
        assert execution.outcome is not None
        assert execution.outcome.broke is not None
        assert (execution.outcome.broke.cause, execution.outcome.broke.stage) == (Cause.ENVIRONMENT, "prepare")
        told = [event.data for event in home.store.events(execution.attempt, execution.number)]
        assert any(data.get("state") == "to_be_retried" for data in told)


async def test_retries_end_where_the_rules_say(home: Home) -> None:
    """What never works is invalid after its retries, counted once, and the run finishes."""
    [attempt] = await tried(home, "oracle", AT_ONCE, range(100), attempts=1)
    assert attempt.outcome is not None
    assert isinstance(attempt.outcome.verdict, Invalid)
    assert [execution.state for execution in home.store.executions(attempt.id)] == [
        ExecutionState.SET_ASIDE, ExecutionState.SET_ASIDE, ExecutionState.DONE,
    ]


async def test_a_failed_agent_is_never_tried_again(home: Home) -> None:
    """Doing nothing fails, validly, and has one execution, whatever the rules allow."""
    for attempt in await tried(home, "nop", RetryRules(retry=(RetryRule(max=9, backoff_s=0.0),)), frozenset()):
        assert attempt.executions == 1
        assert attempt.outcome is not None
        assert isinstance(attempt.outcome.verdict, Valid)


async def test_a_run_that_mostly_breaks_is_paused_and_can_be_resumed(home: Home) -> None:
    """After the last N broke the run says why and begins nothing more; resumed on a sound machine it finishes."""
    rules = RetryRules(retry=(), breaker=BreakerRule(valid_rate=0.5, over=3))
    said = r"only 0 of the last 3 executions were valid \(environment\).*no room for sandbox"
    with pytest.raises(Paused, match=said):
        await tried(home, "oracle", rules, range(100), attempts=12)
    run = home.store.run("last")
    assert run.state is RunState.PAUSED
    assert run.reason is not None
    assert "no room for sandbox" in run.reason
    broken = [attempt for attempt in home.store.attempts(run.id) if attempt.outcome is not None]
    assert 3 <= len(broken) <= 6
    Refusing.refused = frozenset()
    finished = await runs.resume(home, run.id, ignore)
    assert (finished.state, finished.reason) == (RunState.FINISHED, None)
    valid = [a for a in home.store.attempts(run.id) if a.outcome and isinstance(a.outcome.verdict, Valid)]
    assert len(valid) == 12 - len(broken)


def test_a_file_of_retry_rules_is_read_and_a_bad_one_named(shed_home: Path, tmp_path: Path) -> None:
    """--retry takes a file; what is wrong in it is a usage error with the file, the field and the remedy."""
    file = tmp_path / "retry.toml"
    for text, said in (
        ('[[retry]]\ncause = "agent"', f"{file}: retry.0.cause: nothing is retried because of 'agent'"),
        ("[breaker]\nover = 0", f"{file}: breaker.over"),
        ("retry = 3", f"{file}: retry"),
    ):
        file.write_text(text)
        done = woodshed("run", TASK, "--agent", "oracle", "--retry", file, home=shed_home)
        assert done.returncode == 2
        assert said in done.stderr
    file.write_text('breaker = false\n[[retry]]\ncause = "environment"\nmax = 1\n')
    assert woodshed("run", TASK, "--agent", "oracle", "--retry", file, "--new", home=shed_home).returncode == 0
