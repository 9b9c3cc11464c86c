"""Round trip: a trajectory exported as ATIF, or written as it is, replays the same calls."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.harness.replay import plan
from woodshed.harness.tools import NAMES
from woodshed.model import Observation, Step, ToolCall, Trajectory
from woodshed.trainers.atif import to_atif

TEXT = st.text(max_size=12)
VALUES = TEXT | st.integers() | st.booleans() | st.none() | st.lists(TEXT, max_size=2)
ARGUMENTS = st.dictionaries(TEXT, VALUES, max_size=3)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    steps = []
    for index in range(draw(st.integers(0, 6))):
        source = draw(st.sampled_from(["system", "user", "agent"]))
        calls = []
        for number in range(draw(st.integers(0, 3)) if source == "agent" else 0):
            broken = draw(st.booleans())
            calls.append(ToolCall(
                id=f"{index}-{number}", name=draw(TEXT if broken else st.sampled_from(sorted(NAMES))),
                arguments={} if broken else draw(ARGUMENTS), raw="{" if broken else None,
                error="broken" if broken else None))
        seen = tuple(Observation(call=call.id, content=draw(TEXT), exit_code=draw(st.none() | st.integers(0, 255)))
                     for call in calls)
        tokens = draw(st.none() | st.integers(0, 99)) if source == "agent" else None
        steps.append(Step(index=index, source=source, message=draw(TEXT), tool_calls=tuple(calls), observations=seen,
                          prompt_tokens=tokens, completion_tokens=tokens))
    return Trajectory(attempt="a", execution=1, task="t", agent="x", steps=tuple(steps))


@settings(deadline=None)
@given(trajectories())
def test_replay_plans_the_recorded_calls(trajectory: Trajectory) -> None:
    """Both forms give the well-formed calls, in order, with equal names and arguments, under ids of their own."""
    recorded = [(call.name, call.arguments) for step in trajectory.steps for call in step.tool_calls if not call.error]
    with tempfile.TemporaryDirectory() as folder:
        for name, document in (("ours", trajectory.to_json()), ("atif", to_atif(trajectory))):
            path = Path(folder) / name
            path.write_text(json.dumps(document))
            planned = plan(path)
            assert [(call.name, call.arguments) for call in planned] == recorded
            assert len({call.id for call in planned}) == len(planned)


@settings(deadline=None)
@given(trajectories())
def test_our_own_record_reads_back_equal(trajectory: Trajectory) -> None:
    """JSON and back is the same trajectory."""
    assert Trajectory.parse(json.loads(json.dumps(trajectory.to_json()))) == trajectory
