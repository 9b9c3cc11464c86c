"""A family's own format as a dialect: for endpoints that take text, and give back what the model wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from woodshed.harness.dialects.families import Family
from woodshed.harness.dialects.fence import spoken
from woodshed.harness.dialects.hearing import Heard, hear
from woodshed.harness.dialects.reading import Dialect, Reading
from woodshed.harness.dialects.text import done
from woodshed.harness.dialects.typed import Types
from woodshed.harness.schema import complaint
from woodshed.interfaces import ModelResponse, ToolSpec
from woodshed.model import ToolCall
from woodshed.model.exchange import ChatFormat

_PLACEHOLDERS: Mapping[str, Any] = {"string": "...", "integer": 1, "number": 1, "boolean": True, "array": [],
                                    "object": {}}


class InFamily:
    """Calls as the models of a family were taught to write them, as many as an answer has."""

    chat: ChatFormat | None = None
    prose_finishes = True
    fallback: Dialect | None = None

    def __init__(self, family: Family) -> None:
        self._family, self.name = family, family.name

    def offers(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """None: everything stands in the manual."""
        return ()

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """Of the family, and what is expected here."""
        return f"{self._family.manual(tools)}\n\nUse the tools to do what the user asks. When it is done, call finish."

    def read(self, response: ModelResponse, tools: Sequence[ToolSpec] = ()) -> Reading:
        """The answer's calls, in order."""
        return read_family(response, hear(response.content, self._family, Types(tools)), self._family, tools)


def read_family(response: ModelResponse, heard: Heard, family: Family, tools: Sequence[ToolSpec]) -> Reading:
    """What an answer in ``family``'s format comes to. A call that is wrong is shown the right form, once."""
    calls = [item for item in heard.found if isinstance(item, ToolCall)]
    problem = next((item for item in heard.found if isinstance(item, str)), None)
    cut = response.finish_reason == "length"
    if calls and cut and calls[-1].error:
        calls[-1] = calls[-1].model_copy(update={
            "error": f"{calls[-1].error}. Your answer was cut off: write less at once"})
    if not calls:
        shown = form(family, None, tools)
        if problem is not None:
            return Reading(complaint=f"Nothing was run: {problem}. {shown}", family=family, attempted=True)
        began = "Your answer was cut off: it is too long. " if cut else ""
        return Reading(done=done(spoken(heard.said)), family=family,
                       complaint=f"{began}Your answer calls no tool. {shown}")
    note = f"What followed was not run: {problem}. " if problem else ""
    wrong = next((call for call in calls if _wrong(call, tools)), None)
    if wrong is not None or problem:
        note += form(family, wrong, tools)
    return Reading(tuple(calls), note=note, family=family, said=heard.said.strip())


def form(family: Family, wrong: ToolCall | None, tools: Sequence[ToolSpec]) -> str:
    """A call in the right form: of the tool that was called wrongly, or of the first."""
    named = {tool.name: tool for tool in tools}
    tool = named.get(wrong.name if wrong else "") or next(iter(tools), None)
    if tool is None:
        example = ToolCall(id="", name="NAME", arguments={"argument": "value"})
    else:
        properties = tool.parameters.get("properties", {})
        example = ToolCall(id="", name=tool.name, arguments={
            key: _placeholder(properties.get(key)) for key in tool.parameters.get("required", ())})
    return f"Call a tool in this form: {family.write('', [example], Types(tools))}"


def _placeholder(schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return _PLACEHOLDERS.get(kind, "...") if isinstance(kind, str) else "..."


def _wrong(call: ToolCall, tools: Sequence[ToolSpec]) -> bool:
    spec = next((tool for tool in tools if tool.name == call.name), None)
    return bool(call.error) or (bool(tools) and (spec is None or complaint(spec, call.arguments) is not None))
