"""The tools of the loop, in sets. The default one is small: each tool more is one more for a small model to misuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches

from woodshed.errors import UsageError
from woodshed.harness.kit import Kit
from woodshed.harness.tools.diff import Diff
from woodshed.harness.tools.files import EditFile, ReadFile, WriteFile
from woodshed.harness.tools.finish import Finish
from woodshed.harness.tools.kept import ReadOutput
from woodshed.harness.tools.planning import Delegate, Plan
from woodshed.harness.tools.session import KillJob, ReadJob, Shell, StartJob, WaitJob
from woodshed.harness.tools.shell import Bash, RunTests, Search
from woodshed.interfaces import Tool, ToolSpec

Maker = Callable[[Kit], Tool]
"""A class of tools: bound to the kit of a conversation it is one."""


def name_of(maker: Maker) -> str:
    """The name of the tools that it makes."""
    spec: ToolSpec = maker.spec  # type: ignore[attr-defined]  # our makers are classes, each with a spec
    return spec.name


DEFAULT_TOOLS: tuple[Maker, ...] = (
    Bash, ReadFile, WriteFile, EditFile, Search, Diff, RunTests, ReadOutput, Finish)
SETS: Mapping[str, tuple[Maker, ...]] = {
    "default": DEFAULT_TOOLS, "session": (Shell,), "jobs": (StartJob, ReadJob, WaitJob, KillJob), "plan": (Plan,),
    "delegate": (Delegate,),
}
ALL_TOOLS: tuple[Maker, ...] = tuple(maker for makers in SETS.values() for maker in makers)
NAMES = frozenset(name_of(maker) for maker in ALL_TOOLS)


def chosen(names: Iterable[str]) -> Sequence[Maker]:
    """The tools that ``names`` (of sets, and of single tools) mean, each once. Raises UsageError for an unknown one."""
    single: dict[str, tuple[Maker, ...]] = {name_of(maker): (maker,) for maker in ALL_TOOLS}
    found: dict[str, Maker] = {}
    for name in names:
        if (makers := SETS.get(name) or single.get(name)) is None:
            near = get_close_matches(name, [*SETS, *single], n=1)
            remedy = f"Did you mean '{near[0]}'?" if near else f"Sets: {', '.join(SETS)}. Tools: {', '.join(single)}."
            raise UsageError(f"there is no tool and no set of tools '{name}'", field="tools", remedy=remedy)
        found |= {name_of(maker): maker for maker in makers}
    if not found:
        raise UsageError("an agent needs tools", field="tools", remedy="Say default, or name sets and tools.")
    return tuple(found.values())
