"""The tools of the loop. A maker binds a tool to the task it works on."""

from __future__ import annotations

from collections.abc import Callable

from woodshed.harness.tools.diff import Diff
from woodshed.harness.tools.files import EditFile, ReadFile, WriteFile
from woodshed.harness.tools.finish import Finish
from woodshed.harness.tools.shell import Bash, RunTests, Search
from woodshed.interfaces import Tool
from woodshed.model import Task

Maker = Callable[[Task], Tool]

_ALL = (Bash, ReadFile, WriteFile, EditFile, Search, Diff, RunTests, Finish)
DEFAULT_TOOLS: tuple[Maker, ...] = _ALL
NAMES = frozenset(tool.spec.name for tool in _ALL)
