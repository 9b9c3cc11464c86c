"""Which agent ``external:NAME`` means: a declared one, a file that declares one, or a command as it stands."""

from __future__ import annotations

import shlex
import tomllib
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path

from woodshed import given
from woodshed.errors import UsageError
from woodshed.harness.external.spec import ExternalAgent

GROUP = "woodshed.external"
"""Entry points: each is an :class:`ExternalAgent`; ``docs/external.md`` shows one."""
COMMAND = "command:"
_FILE_BYTES = 1_000_000


def named(argument: str | None) -> ExternalAgent:
    """The agent that ``argument`` means: NAME, FILE.toml or ``command:WORDS``. Raises UsageError."""
    if not argument:
        raise UsageError("external needs an agent", remedy=f"Write external:NAME. {_all()}")
    if argument.startswith(COMMAND):
        return _of_words(argument.removeprefix(COMMAND))
    return _of_file(Path(argument)) if argument.endswith(".toml") else _declared(argument)


def _of_words(words: str) -> ExternalAgent:
    try:
        command = tuple(shlex.split(words))
    except ValueError as error:
        raise UsageError(f"the command cannot be read: {error}", field=COMMAND, remedy="Close its quotes.") from None
    if not command:
        raise UsageError("the command is empty", field=COMMAND,
                         remedy="Write external:command:python3 agent.py {instruction_file}.")
    return ExternalAgent.parse({"name": "command", "command": command})


def _of_file(path: Path) -> ExternalAgent:
    text = given.text(path, _FILE_BYTES, remedy="Is this the right file? docs/external.md shows one.")
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"is no TOML: {error}", file=path, remedy="Mend it; docs/external.md shows one.") from None
    return ExternalAgent.parse({"name": path.stem.lower(), **data}, file=path)


def _declared(name: str) -> ExternalAgent:
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        near = get_close_matches(name, found, n=1)
        raise UsageError(f"no agent '{name}' is declared", field="external",
                         remedy=f"Did you mean '{near[0]}'?" if near else _all())
    try:
        agent = found[name].load()
    except (ImportError, AttributeError) as error:
        raise UsageError(f"the agent '{name}' cannot be loaded: {error}", remedy="Install what it needs.") from error
    if not isinstance(agent, ExternalAgent):
        raise UsageError(f"the entry point '{name}' of {GROUP} is a {type(agent).__name__}, not an ExternalAgent")
    return agent


def _all() -> str:
    known = ", ".join(sorted(point.name for point in entry_points(group=GROUP))) or "none"
    return f"Declared: {known}; or FILE.toml, or command:WORDS."
