"""Fills a store with a run whose attempts say what a test needs, and no sandbox ever ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from woodshed.errors import Cause
from woodshed.model import (
    Agent,
    Assurance,
    Attempt,
    EventKind,
    Invalid,
    ModelSpec,
    Outcome,
    Run,
    RunSpec,
    RunState,
    StopReason,
    Valid,
)
from woodshed.model.event import now
from woodshed.model.fork import ForkSpec
from woodshed.model.tokens import Packer, Tokens
from woodshed.services.home import Home
from woodshed.store.eventlog import EventLog

TOOL = {"type": "function", "function": {"name": "bash", "description": "run", "parameters": {"type": "object"}}}
Emit = Callable[[EventKind, dict[str, Any]], None]


def valid(total: float | None, flags: tuple[str, ...] = ()) -> Valid:
    return Valid(rewards={"reward": total}, total=total, assurance=Assurance.POISONED, flags=flags)


BROKEN = Invalid(cause=Cause.ENVIRONMENT, detail="the disk is full")


class Talk:
    """Tells a conversation of one model and one tool as the gateway and the loop do, with tokens or without.

    As in reality, the server has a name of its own for each call, and the loop another, which is what it sends back.
    """

    def __init__(self, emit: Emit, instruction: str, *, tokens: bool = True) -> None:
        self.emit, self.count, self.told, self.kept = emit, 0, [{"role": "user", "content": instruction}], 0
        self.ids: tuple[int, ...] = tuple(range(1, 4))
        self.packer = Packer(lambda content: "") if tokens else None
        emit(EventKind.MESSAGE, {"role": "user", "content": instruction})

    def says(self, content: str, command: str | None = None, exit_code: int | None = 0, output: str = "",
             finish: str = "stop") -> None:
        """One answer, with the call that it made and its result."""
        self.count += 1
        name, call = f"m{self.count:05d}", f"c{self.count}"
        calls = [] if command is None else [
            {"id": f"srv-{7919 * self.count:x}", "name": "bash", "arguments": {"command": command}}]
        self.emit(EventKind.MODEL_CALL, {
            "call": name, "model": "tiny", "kept": self.kept, "messages": self.told[self.kept:],
            "tools": [TOOL] if self.count == 1 else None, "sampling": {"temperature": 1.0}, "max_tokens": None})
        self.kept = len(self.told)
        completion = (10 + self.count, 2)
        packed = self.packer.packed(name, Tokens(self.ids, completion, (-0.5, -0.1), "v1")) if self.packer else None
        self.emit(EventKind.MODEL_RESULT, {
            "call": name, "content": content, "tool_calls": calls, "finish_reason": finish, "usage": {}, "seconds": 0.1,
            **({"tokens": packed} if packed else {})})
        self.ids = (*self.ids, *completion, 20 + self.count)
        answer: dict[str, Any] = {"role": "assistant", "content": content}
        if command is not None:
            answer["tool_calls"] = [{"id": call, "type": "function",
                                     "function": {"name": "bash", "arguments": '{"command": "' + command + '"}'}}]
            self.emit(EventKind.TOOL_CALL, {"call": call, "name": "bash", "arguments": {"command": command}})
            self.emit(EventKind.TOOL_RESULT, {"call": call, "content": output, "exit_code": exit_code})
        self.told.append(answer)
        if command is not None:
            self.told.append({"role": "tool", "content": output, "tool_call_id": call})


Story = tuple[str, Valid | Invalid | None, Callable[[Emit], None] | None]


def filled(home: Home, stories: Sequence[Story], *, run: str = "r1", model: ModelSpec | None = None,
           agent: str = "loop", fork: ForkSpec | None = None) -> Run:  # fmt: skip
    """A run with one attempt for each (task, verdict, story); without a verdict an attempt is not over."""
    who = Agent(name=agent, harness="loop", model=model or ModelSpec(name="tiny", base_url="http://127.0.0.1:1/v1"))
    made = Run(id=run, spec=RunSpec(tasks=(), agents=(who,), attempts=len(stories), fork=fork),
               state=RunState.FINISHED, created_at=now())
    counts: dict[str, int] = {}
    attempts = []
    for number, (task, _, _) in enumerate(stories):
        counts[task] = counts.get(task, -1) + 1
        attempts.append(Attempt(id=f"{run}-a{number:02d}", run=run, task=task, agent=agent, index=counts[task],
                                seed=number))
    home.store.create_run(made, attempts)
    for attempt, (_, verdict, story) in zip(attempts, stories, strict=True):
        if verdict is None:
            continue
        execution = home.store.begin_execution(attempt.id, "test")
        assert execution is not None
        log = EventLog(home.store, attempt.id, execution)
        if story is not None:
            story(lambda kind, data, log=log: log.emit(kind, data))  # type: ignore[misc]  # bound now, not later
        else:
            log.emit(EventKind.STATE, {"state": "acted"})
        log.finish(Outcome(verdict=verdict, stop=StopReason.FINISHED))
    return made


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """All rows of an exported JSONL data set."""
    import json

    return [json.loads(line) for file in sorted((folder / "data").iterdir()) for line in
            file.read_bytes().split(b"\n") if line]  # str.splitlines ends a line at further signs, which JSON may hold
