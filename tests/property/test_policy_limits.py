"""Limits of a task and of an agent's policy meet at the narrower of both."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from woodshed.model import Agent, Limits, SandboxPolicy

BOUNDS = st.builds(
    Limits,
    memory_mb=st.none() | st.integers(1, 4096),
    cpus=st.none() | st.floats(0.1, 64),
    pids=st.integers(1, 4096),
    disk_mb=st.integers(1, 4096),
    wall_s=st.none() | st.floats(0.1, 1e6),
)


@given(declared=BOUNDS, bounds=BOUNDS)
def test_no_limit_is_wider_than_the_tasks_or_the_policys(declared: Limits, bounds: Limits) -> None:
    """Each limit is the task's, or the policy's where that is narrower; a default of the policy asks nothing."""
    held = declared.within(bounds)
    agent = Agent(name="a", harness="nop", policy=SandboxPolicy(limits=bounds))
    assert agent.wall_within(60.0, declared) == min(60.0, held.wall_s or 60.0)
    assert agent.policy_within(declared).limits.wall_s is None
    for name in Limits.model_fields:
        mine, asked, default = getattr(declared, name), getattr(bounds, name), getattr(Limits(), name)
        known = [value for value in (mine, asked if asked != default else None) if value is not None]
        assert getattr(held, name) == (min(known) if known else None)


@given(declared=BOUNDS, bounds=BOUNDS)
def test_a_stored_agent_binds_alike(declared: Limits, bounds: Limits) -> None:
    """An agent read back from a run's record holds its sandbox to the same policy."""
    agent = Agent(name="a", harness="nop", policy=SandboxPolicy(limits=bounds))
    again = Agent.parse(agent.to_json())
    assert again.policy_within(declared) == agent.policy_within(declared)
