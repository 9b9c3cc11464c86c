"""Kit: what the tools of one conversation share. Their own state is none: a tool may be asked again after a resume."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from woodshed.harness.shelf import Shelf
from woodshed.interfaces import Emit, Process, Session, ToolResult
from woodshed.model import EventKind, Observation, Task, ToolCall

CHARS = 16_000
"""Of one tool's answer, as far as the model sees it: about 4,500 tokens."""
Deed = tuple[ToolCall, Observation]
Delegated = Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]
"""Carries out a sub-task: the id of the call that asks for it, and its arguments."""


def read_again(handle: str, offset: int) -> str:
    """How a model that calls tools reads the rest of an output."""
    return f'read_output("{handle}", offset={offset}, limit)'


def read_again_in_text(handle: str, offset: int) -> str:
    """How a model that writes its calls as text does."""
    return ('to read it: a ```json block {"name": "read_output", "arguments": '
            f'{{"handle": "{handle}", "offset": {offset}}}}}')


def _unheard(kind: EventKind, data: Mapping[str, Any]) -> None:
    """For a tool that is used by itself."""


@dataclass(slots=True)
class Kit:
    """The task, what was done so far, what was left out, and what still runs.

    ``fitting`` says how many characters of a text the model may be shown now; ``how`` how it reads the rest.
    """

    task: Task
    shelf: Shelf = field(default_factory=Shelf)
    emit: Emit = _unheard
    history: list[Deed] = field(default_factory=list)
    fitting: Callable[[str], int] = lambda text: CHARS
    how: Callable[[str, int], str] = read_again
    session: Session | None = None
    jobs: dict[str, Job] = field(default_factory=dict)
    delegate: Delegated | None = None
    malformed: set[str] = field(default_factory=set)
    """Ids of calls that were answered without anything being done."""
    call: str = ""
    """The id of the call that is carried out, for a tool that needs it. Several at once have none."""

    def note(self, call: ToolCall, result: ToolResult) -> Deed:
        """The call is a part of the history now, with what it answered."""
        if call.id in self.malformed:
            call = call.model_copy(update={"error": call.error or "malformed"})
        seen = Observation(call=call.id, content=result.content, exit_code=result.exit_code,
                           truncated=result.truncated, timed_out=result.timed_out)
        self.history.append((call, seen))
        return call, seen

    async def close(self) -> None:
        """End what runs. What is already gone is no matter."""
        session, self.session = self.session, None
        if session is not None:
            await session.close()
        for job in self.jobs.values():
            await job.process.kill()


@dataclass(slots=True)
class Job:
    """A background command: its output so far, of which the first part is dropped where it is too much."""

    process: Process
    command: str
    output: bytearray
    dropped: list[int]
    """The one number in it counts the bytes."""
    exit_code: int | None = None
    began: float = field(default_factory=time.monotonic)
