"""replay: plays the tool calls of a recorded trajectory, without a model. Our own Trajectory, or ATIF."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from woodshed import given
from woodshed.errors import UsageError
from woodshed.harness.hands import Hands
from woodshed.harness.kit import Kit
from woodshed.harness.limits import Meter
from woodshed.harness.shelf import Shelf
from woodshed.harness.tools import ALL_TOOLS, NAMES
from woodshed.interfaces import Acting
from woodshed.model import StopReason, ToolCall, Trajectory

_FILE_BYTES = 200_000_000
_SHELLS = frozenset({"bash_command", "execute_bash", "execute_command", "run_command", "run_shell_command", "shell",
                     "terminal"})  # what other agents call the tool that takes one ``command``
_LEFT_OUT = frozenset({"delegate"})  # what a helper did stands in the record by itself


class Replay:
    """A harness that carries out recorded calls in order; their recorded results are not looked at.

    Raises UsageError, when made, for a file that is no trajectory or holds calls of tools that we do not have.
    """

    needs_model = False
    resumable = True

    def __init__(self, path: str | Path | None) -> None:
        if not path:
            raise UsageError("replay needs a file", remedy="Write replay:FILE, with FILE a trajectory in JSON.")
        self.plan = plan(Path(path))

    async def act(self, acting: Acting) -> StopReason:
        """FINISHED after the last call, TOOL_CALLS or WALL at a limit."""
        meter = Meter(acting)
        kit = Kit(acting.task, Shelf(acting.blobs), acting.emit)
        hands = Hands(acting, ALL_TOOLS, meter, kit)
        try:
            for call in self.plan:
                if acting.between_turns is not None:
                    await acting.between_turns()
                if (stop := meter.no_more_calls()) is not None:
                    return stop
                if call.name not in _LEFT_OUT:
                    kit.note(call, await hands.do(call))  # a finish that was answered is no end, here as there
        finally:
            await hands.close()
        return StopReason.FINISHED


def plan(path: Path) -> tuple[ToolCall, ...]:
    """The calls that ``path`` records, in order, with their own ids; malformed ones, which did nothing, are left out.

    Raises UsageError naming the file and the field.
    """
    data = _load(path)
    if not isinstance(data, dict):
        raise UsageError("a trajectory is a JSON object", file=path, remedy=f"Found a {type(data).__name__}.")
    calls = _atif(data, path) if "schema_version" in data else _ours(data, path)
    return tuple(call.model_copy(update={"id": f"r{number:08d}"}) for number, call in enumerate(calls, 1))


def _load(path: Path) -> Any:
    content = given.content(path, _FILE_BYTES)
    try:
        return json.loads(content)
    except UnicodeDecodeError as error:
        raise given.no_text(error, path) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"is not JSON: {error}", file=path, remedy="Export one with 'woodshed export --format atif'."
                         ) from None


def _ours(data: dict[str, Any], path: Path) -> Iterator[ToolCall]:
    for number, step in enumerate(Trajectory.parse(data, file=path).steps):
        for call in step.tool_calls:
            if call.error is None:
                yield _known(call, path, f"steps.{number}.tool_calls")


def _atif(data: Mapping[str, Any], path: Path) -> Iterator[ToolCall]:
    version = data["schema_version"]
    if not isinstance(version, str) or not version.startswith("ATIF-v1."):
        raise UsageError(f"unknown version {version!r}", file=path, field="schema_version", remedy="Known: ATIF-v1.x.")
    for number, step in enumerate(_list(data, "steps", path, "")):
        where = f"steps.{number}"
        if not isinstance(step, dict):
            raise UsageError("a step is a JSON object", file=path, field=where)
        if step.get("is_copied_context"):
            continue
        for index, call in enumerate(_list(step, "tool_calls", path, f"{where}.")):
            read = _atif_call(call, path, f"{where}.tool_calls.{index}")
            if read is not None:
                yield read


def _atif_call(call: Any, path: Path, where: str) -> ToolCall | None:
    if not isinstance(call, dict):
        raise UsageError("a tool call is a JSON object", file=path, field=where)
    extra = call.get("extra")
    if isinstance(extra, dict) and extra.get("error"):
        return None
    name, arguments = call.get("function_name"), call.get("arguments")
    if not isinstance(name, str):
        raise UsageError("required, and a string", file=path, field=f"{where}.function_name")
    if not isinstance(arguments, dict):
        raise UsageError("required, and an object", file=path, field=f"{where}.arguments")
    return _known(ToolCall(id="", name=name, arguments=arguments), path, f"{where}.function_name")


def _known(call: ToolCall, path: Path, where: str) -> ToolCall:
    if call.name in NAMES:
        return call
    if call.name in _SHELLS and isinstance(call.arguments.get("command"), str):
        return ToolCall(id="", name="bash", arguments={"command": call.arguments["command"]})
    raise UsageError(f"there is no tool '{call.name}' to replay with", file=path, field=where,
                     remedy=f"Known: {', '.join(sorted(NAMES))}.")


def _list(data: Mapping[str, Any], key: str, path: Path, prefix: str) -> list[Any]:
    value = data.get(key)
    if value is None and prefix:
        return []
    if not isinstance(value, list):
        raise UsageError("required, and a list", file=path, field=f"{prefix}{key}")
    return value
