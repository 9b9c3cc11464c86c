"""Checking a call's arguments against its tool's schema, with answers a model can act on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from woodshed.interfaces import ToolSpec

_TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
                                         "array": (list,), "object": (dict,)}
_MAY_HOLD_NUL = frozenset({"content", "old", "new"})
_ELSEWHERE: Mapping[str, frozenset[str]] = {
    "bash": frozenset({"execute_bash", "execute_command", "run_command", "run_shell_command", "run", "terminal", "sh",
                       "execute", "exec", "command", "python", "run_code", "computer"}),
    "read_file": frozenset({"cat", "open", "open_file", "view", "view_file", "file_read", "list_dir", "ls"}),
    "write_file": frozenset({"create", "create_file", "save_file", "file_write", "write"}),
    "edit_file": frozenset({"edit", "str_replace", "str_replace_editor", "str_replace_based_edit_tool", "replace",
                            "apply_patch", "patch", "replace_in_file"}),
    "search": frozenset({"grep", "rg", "find", "ripgrep", "search_files", "grep_search", "codebase_search"}),
    "run_tests": frozenset({"test", "tests", "pytest"}),
    "finish": frozenset({"submit", "done", "complete", "stop", "end", "attempt_completion", "task_done", "exit"}),
}
"""What agents of others call what ours do: a model that was trained with those writes them."""


def complaint(spec: ToolSpec, arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with ``arguments``, with the remedy; None when nothing is.

    Of the schema it covers which arguments are required, and simple types; what else it says is not checked.
    """
    properties: Mapping[str, Mapping[str, Any]] = spec.parameters.get("properties", {})
    wrong = [_unknown(key, properties) for key in arguments if key not in properties]
    wrong += [f"'{key}' is missing" for key in spec.parameters.get("required", ()) if key not in arguments]
    wrong += [problem for key, value in arguments.items() if key in properties
              if (problem := _mistyped(key, value, properties[key])) is not None]
    if not wrong:
        return None
    return f"{spec.name}: {'; '.join(wrong)}. It takes {signature(spec)}."


def unknown_tool(name: str, known: Iterable[str]) -> str:
    """The answer to a call of a tool that does not exist."""
    names = sorted(known)
    meant = next((ours for ours, theirs in _ELSEWHERE.items() if ours in names and name.lower() in theirs), None)
    near = [meant] if meant else get_close_matches(name, names, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"There is no tool '{name[:60]}'.{hint} Tools: {', '.join(names)}."


def signature(spec: ToolSpec) -> str:
    """The tool's arguments in one line: ``path (string), start (integer, optional)``."""
    required = set(spec.parameters.get("required", ()))
    parts = [f"{key} ({value.get('type', 'string')}{'' if key in required else ', optional'})"
             for key, value in spec.parameters.get("properties", {}).items()]
    return ", ".join(parts) or "no arguments"


def _unknown(key: str, properties: Iterable[str]) -> str:
    near = get_close_matches(key, list(properties), n=1)
    return f"unknown argument '{key[:60]}'" + (f" (did you mean '{near[0]}'?)" if near else "")


def _mistyped(key: str, value: Any, declared: Mapping[str, Any]) -> str | None:
    kind = declared.get("type")
    known = _TYPES.get(kind) if isinstance(kind, str) else None
    fits = known is None or (isinstance(value, known) and (kind == "boolean" or not isinstance(value, bool)))
    if not fits:
        return f"'{key}' must be of type {kind}, not {type(value).__name__}"
    if isinstance(value, str) and "\0" in value and key not in _MAY_HOLD_NUL:
        return f"'{key}' holds a NUL character"
    return None
