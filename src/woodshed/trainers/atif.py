"""ATIF export: a Trajectory in Harbor's Agent Trajectory Interchange Format, version 1.8.

Source: RFC 0001 of Harbor (``harbor.models.trajectories``). What ATIF has no field for stands in ``extra``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from woodshed.interfaces import ToolSpec
from woodshed.model import Observation, Step, ToolCall, Trajectory, Verdict
from woodshed.version import __version__

SCHEMA_VERSION = "ATIF-v1.8"


def to_atif(
    trajectory: Trajectory, verdict: Verdict | None = None, *, run: str | None = None, tools: Sequence[ToolSpec] = ()
) -> dict[str, Any]:
    """The document, as plain JSON values. ``run`` becomes the session; without steps it holds one that says so.

    The verdict stands under ``extra.woodshed.verdict``: ATIF has none, and an invalid one must not look like a reward.
    """
    agent: dict[str, Any] = {"name": trajectory.agent, "version": __version__}
    if trajectory.model is not None:
        agent["model_name"] = trajectory.model
    if tools:
        agent["tool_definitions"] = [
            {"type": "function", "function": {"name": tool.name, "description": tool.description,
                                              "parameters": dict(tool.parameters)}} for tool in tools]
    steps = trajectory.steps or (Step(index=0, source="system", message="Nothing was done."),)
    woodshed: dict[str, Any] = {"task": trajectory.task, "attempt": trajectory.attempt,
                                "execution": trajectory.execution}
    if verdict is not None:
        woodshed["verdict"] = verdict.to_json()
    document = {
        "schema_version": SCHEMA_VERSION, "trajectory_id": f"{trajectory.attempt}-{trajectory.execution}",
        "agent": agent, "steps": [_step(number, step) for number, step in enumerate(steps, 1)],
        "final_metrics": _totals(steps), "extra": {"woodshed": woodshed},
    }
    return document | ({"session_id": run} if run is not None else {})


def _step(number: int, step: Step) -> dict[str, Any]:
    written: dict[str, Any] = {"step_id": number, "source": step.source, "message": step.message}
    if step.parent is not None:
        written["extra"] = {"parent": step.parent}
    if step.inherited:
        written["is_copied_context"] = True
    if step.source != "agent":
        return written
    if step.reasoning:
        written["reasoning_content"] = step.reasoning
    if step.tool_calls:
        written["tool_calls"] = [_call(call) for call in step.tool_calls]
    if step.observations:
        written["observation"] = {"results": [_result(seen) for seen in step.observations]}
    if step.completion_tokens is None:
        written["llm_call_count"] = 0  # no model asked for it; then metrics must be absent
        return written
    written["llm_call_count"] = 1
    written["metrics"] = {"prompt_tokens": step.prompt_tokens or 0, "completion_tokens": step.completion_tokens}
    return written


def _call(call: ToolCall) -> dict[str, Any]:
    written: dict[str, Any] = {"tool_call_id": call.id, "function_name": call.name, "arguments": call.arguments}
    extra = {key: value for key, value in (("error", call.error), ("raw", call.raw)) if value is not None}
    return written | ({"extra": extra} if extra else {})


def _result(seen: Observation) -> dict[str, Any]:
    flags = {"truncated": seen.truncated, "timed_out": seen.timed_out, "interrupted": seen.interrupted}
    extra: dict[str, Any] = {key: True for key, value in flags.items() if value}
    whole = {"blob": seen.blob, "characters": seen.characters}
    extra |= {key: value for key, value in whole.items() if value is not None}
    if seen.exit_code is not None:
        extra["exit_code"] = seen.exit_code
    written: dict[str, Any] = {"source_call_id": seen.call, "content": seen.content}
    return written | ({"extra": extra} if extra else {})


def _totals(steps: Sequence[Step]) -> dict[str, Any]:
    own = [step for step in steps if not step.inherited]
    return {"total_prompt_tokens": sum(step.prompt_tokens or 0 for step in own),
            "total_completion_tokens": sum(step.completion_tokens or 0 for step in own), "total_steps": len(steps)}
