"""Strict schemas: what is sent, and what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # stubs are no dependency of ours

from scripted import act, bash, said
from woodshed.harness.dialects.strict import strictly
from woodshed.harness.loop import Loop
from woodshed.model import EventKind, StopReason

LEAVES: st.SearchStrategy[dict[str, Any]] = st.sampled_from([
    {"type": "string"}, {"type": "integer"}, {"type": "boolean"}, {"type": "string", "enum": ["a", "b"]},
    {"type": ["string", "null"]}, {}])


def objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    properties = st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    return properties.flatmap(lambda made: st.builds(
        lambda required: {"type": "object", "properties": made, "required": sorted(required)},
        st.sets(st.sampled_from(sorted(made)), max_size=3) if made else st.just(set())))


SCHEMAS = objects(st.recursive(LEAVES, lambda inner: objects(inner) | st.builds(
    lambda items: {"type": "array", "items": items}, inner) | st.builds(
    lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=2)), max_leaves=6))


def loose(schema: Any) -> list[Any]:
    """Objects in a schema that are not strict."""
    if isinstance(schema, list):
        return [found for each in schema for found in loose(each)]
    if not isinstance(schema, dict):
        return []
    own = [schema] if "properties" in schema and isinstance(schema["properties"], dict) and (
        schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(schema["properties"])
    ) else []
    return own + [found for each in schema.values() for found in loose(each)]


@settings(deadline=None)
@given(SCHEMAS)
def test_every_object_of_a_strict_schema_is_strict(schema: dict[str, Any]) -> None:
    """All properties are required, no others allowed; it is a valid schema, and the one it was made of is unchanged."""
    before = repr(schema)
    made = strictly(schema)
    Draft202012Validator.check_schema(made)
    assert loose(made) == []
    assert repr(schema) == before


async def test_strict_tools_are_offered_and_null_means_left_out(tmp_path: Path) -> None:
    """The request says strict; an optional argument that is null is as if it were not there."""
    done = await act(Loop(), tmp_path, said("", ("bash", {"command": "echo 5", "timeout_s": None})),
                     said("", ("finish", {"summary": "I could not do it.", "command": None, "exit_code": None})),
                     dialect="strict")
    [function] = [tool["function"] for tool in done.requests[0]["tools"] if tool["function"]["name"] == "bash"]
    assert function["strict"] is True
    assert function["parameters"]["required"] == ["command", "timeout_s"]
    assert function["parameters"]["properties"]["timeout_s"]["type"] == ["number", "null"]
    assert done.stop is StopReason.FINISHED
    assert done.of(EventKind.TOOL_CALL)[0]["arguments"] == {"command": "echo 5"}
    assert not any("error" in data for data in done.of(EventKind.TOOL_CALL))


async def test_a_server_that_refuses_strict_schemas_is_asked_as_in_auto(tmp_path: Path) -> None:
    """The conversation begins again with plain schemas."""
    done = await act(Loop(), tmp_path, (400, '{"error": {"message": "strict is not supported"}}'), bash("true"),
                     said("", ("finish", {"summary": "I could not do it."})), dialect="strict")
    assert "strict" not in done.requests[1]["tools"][0]["function"]
    assert [data["name"] for data in done.of(EventKind.TOOL_CALL)] == ["bash", "finish"]
