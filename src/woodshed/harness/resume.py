"""Fine durability: an attempt that goes on in another execution at the turn it had reached.

The harness is run once more from its beginning, as it always is. What earlier executions recorded takes the place of
what it would do: answers of the model are not asked for again, results of tools are taken from the record. So the
conversation, the budgets and the judgement whether it is stuck are made by the same code as then, whatever it is; a
harness whose next step depends on nothing but the task, the answers and the results says so by ``resumable = True``.

Calls after the checkpoint that the sandbox was restored from had effects that are lost. They are carried out again
where nothing of them can have left the sandbox, and what they answer is compared with the record; where something can
have left it, they are not, and the model is told.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from woodshed.harness.checkpoint import Restored, damage, kept, restorable
from woodshed.harness.recorded import Work, carried_out
from woodshed.harness.rehearsal import OutOfRecord
from woodshed.interfaces import (
    Acting,
    BlobSink,
    Emit,
    Harness,
    ModelRequest,
    ModelResponse,
    Reach,
    Said,
    ToolResult,
)
from woodshed.model import Agent, ChangeSet, CheckpointRule, EventKind, Observation, Past, PastCall, StopReason, Usage
from woodshed.model.past import canonical

INTERRUPTED = ("[interrupted: the machine was lost while this ran. It may have had effects outside of the sandbox, so "
               "it was not run again; look before you repeat it]")
_SHOWN = 2000
_NAMED = 20


@dataclass(slots=True)
class Fine:
    """What makes an execution fine. ``keep`` commits what was emitted so far; ``past`` is what it goes on with.

    When ``leaving``, it is left at the next turn for others to go on with: a checkpoint is made, and it ends cancelled.
    """

    keep: Callable[[], Awaitable[None]]
    rule: CheckpointRule = field(default_factory=CheckpointRule)
    past: Past | None = None
    leaving: Callable[[], bool] = lambda: False
    restored: Restored = field(default_factory=Restored)
    begun: bool = False
    """What it goes on with was recorded."""

    @property
    def stop(self) -> StopReason:
        """Why the acting ended, where it had."""
        return (self.past.stop if self.past else None) or StopReason.FINISHED

    @property
    def usage(self) -> Usage:
        """What the acting took, where it had ended."""
        return self.past.usage if self.past else Usage()

    def more_s(self, agent: Agent) -> float:
        """Seconds that restoring may take at the most: the agent's own time is what earlier executions left of it."""
        if self.past is None:
            return 0.0
        return (len(self.past.calls) - self.restored.held + 1) * agent.limits.tool_timeout_s

    async def begin(self, blobs: BlobSink, emit: Emit) -> tuple[ChangeSet, BlobSink] | None:
        """What the sandbox is to begin with; it is recorded what this execution goes on with. Raises StoreFault."""
        if (past := self.past) is None:
            return None
        if not self.begun:
            found = await restorable(past, blobs)
            self.restored = replace(found, broken=(*self.restored.broken, *found.broken))
            checkpoint = self.restored.checkpoint
            await self._begun(emit, past, checkpoint.to_json() if checkpoint else None, self.restored.lost)
        return (self.restored.changes, blobs) if self.restored.changes is not None else None

    async def captured(self, blobs: BlobSink, emit: Emit) -> ChangeSet | None:
        """The end state, where the acting was over and it was captured whole; else None, and it is to be acted on."""
        if self.past is None or self.past.changes is None:
            return None
        if broken := await damage(self.past.changes, blobs):
            self.restored = Restored(broken=(f"the end state: {broken}",))
            return None
        await self._begun(emit, self.past, None, [])
        return self.past.changes

    async def _begun(self, emit: Emit, past: Past, checkpoint: dict[str, Any] | None, lost: list[str]) -> None:
        emit(EventKind.RESUME, {
            "state": "begun", "execution": past.execution, "seq": past.seq, "turn": past.turns,
            "calls": len(past.calls), "checkpoint": checkpoint, "broken": list(self.restored.broken), "lost": lost,
            **({"steps": len(past.earlier), "step": past.step} if past.earlier or past.step else {}),
        })
        self.begun = True
        await self.keep()

    # -- of a task of several steps ------------------------------------------------------------------------------------

    async def look(self, blobs: BlobSink) -> None:
        """Where the end of a step was captured, it is whole; else it is acted on. To be awaited before all else."""
        if self.past is None or self.past.step is None or self.past.changes is None:
            return
        if broken := await damage(self.past.changes, blobs):
            self.past = self.past.model_copy(update={"changes": None})
            self.restored = Restored(broken=(f"the end of {self.past.step}: {broken}",))

    @property
    def records(self) -> tuple[Past, ...]:
        """What was done in each step that was begun, in order; a task that has none is one."""
        return self.past.records if self.past is not None else ()

    def of_step(self, index: int) -> Fine:
        """What makes the acting in one step fine."""
        records = self.records
        if index != len(records) - 1:
            return replace(self, past=None, restored=Restored())
        return replace(self, restored=self.restored if self.restored.step == index else Restored())

    def began(self, index: int) -> bool:
        """Whether the sandbox that was restored is one in which the step has begun."""
        return self.restored.checkpoint is not None and self.restored.step >= index


class Lasting:
    """A harness whose attempts last: they outlive the process that executes them. Implements ``interfaces.Harness``."""

    def __init__(self, harness: Harness, fine: Fine, blobs: BlobSink) -> None:
        self._harness, self._fine, self._blobs = harness, fine, blobs
        self.needs_model = harness.needs_model

    async def act(self, acting: Acting) -> StopReason:
        """As the harness itself does, from the turn that was reached on."""
        continuity = Continuity(acting, self._fine, self._blobs)
        try:
            async with asyncio.timeout(None) as continuity.wall:
                stop = await self._harness.act(acting)
        except TimeoutError:
            if not continuity.wall.expired():
                raise
            stop = StopReason.WALL
        await continuity.over()
        return stop

    async def again(self, acting: Acting, step: str) -> None:
        """All that the record tells of a step that is over, done once more for its effects; nothing beyond it.

        ``acting`` has a model that recites. How it went is told, and nothing that the step's record has already.
        """
        emit = acting.emit

        def heard(kind: EventKind, data: Mapping[str, Any]) -> None:
            if kind is EventKind.RESUME:
                emit(kind, {**data, "step": step})

        acting.emit = heard
        continuity = Continuity(acting, self._fine, self._blobs, ended=True)
        with suppress(OutOfRecord):
            await self._harness.act(acting)
        heard(EventKind.RESUME, {"state": "again", **continuity.account})
        await self._fine.keep()


class Continuity:
    """Stands between a harness and its world: first what was recorded, then what is. Made upon an Acting, which it

    takes over: its model, its hooks, its ``emit`` and its deadline. ``ended``: nothing comes after the record, and what
    asks for more gets OutOfRecord.
    """

    def __init__(self, acting: Acting, fine: Fine, blobs: BlobSink, *, ended: bool = False) -> None:
        past = fine.past
        self._ended = ended
        self._acting, self._fine, self._blobs = acting, fine, blobs
        self._emit, self._model = acting.emit, acting.model
        self._answers = len(past.answers) if past else 0
        self._unasked = past is not None and not past.answers
        """No model asked for its calls: the record ends with the last of them."""
        self._calls = {call.call: (number, call) for number, call in enumerate(past.calls if past else ())}
        self._said = Counter(past.said if past else ())
        self._told = past.told if past else ()
        self._remarks, self._played = (past.remarks, past.played) if past else ({}, {})
        self._heard, self._hear = past.heard if past else {}, acting.hear
        self._live = past is None
        self._turn = -1
        self._spoken = False
        self._last_turn, self._last_at = 0, time.monotonic()
        self._named: set[str] = set()
        self._redone: list[str] = []
        self._differing: list[str] = []
        self._left_out: list[str] = []
        self._interrupted: list[str] = []
        self._differs = False
        self._began = time.monotonic()
        self.wall: asyncio.Timeout
        """What ends the acting, from when all is restored."""
        self._left_s = acting.deadline_s
        if past is not None:
            self._left_s = max(0.0, acting.deadline_s - past.acted_s)
            acting.deadline_s = self._left_s + fine.more_s(acting.agent)
        acting.emit, acting.around_tool, acting.between_turns = self.emit, self.tool, self.between_turns
        acting.remarks = self.remarks if past is not None else None
        acting.played = self.played if past is not None else None
        acting.hear = self.hear
        acting.model = self if self._model is not None else None

    # -- what the harness is given in the place of its world -----------------------------------------------------------

    def emit(self, kind: EventKind, data: Mapping[str, Any]) -> None:
        """Append an event, but not once more what an earlier execution emitted."""
        if kind in (EventKind.TOOL_CALL, EventKind.TOOL_RESULT):
            self._emit_call(kind, data)
            return
        said = (kind.value, canonical(data)) if self._said else None
        if said is not None and self._said[said] > 0:
            self._said[said] -= 1
        elif not self._replaying:
            self._spoken = self._spoken or kind is EventKind.FEEDBACK
            self._emit(kind, data)
        elif kind is EventKind.MESSAGE:
            self._tell_apart("a message that was not in the conversation then")
            self._emit(kind, data)

    def _emit_call(self, kind: EventKind, data: Mapping[str, Any]) -> None:
        """Of a call that harnesses carry out themselves, as it is made of calls that are recorded one by one."""
        _, known = self._calls.get(data["call"], (0, None))
        if kind is EventKind.TOOL_RESULT and known is not None:
            del self._calls[data["call"]]
        if known is None or (kind is EventKind.TOOL_RESULT and known.seen is None):
            self._emit(kind, data)

    async def call(self, request: ModelRequest) -> ModelResponse:
        """As :meth:`ModelClient.call`; the client itself knows the first answers."""
        assert self._model is not None
        if not self._answers:
            self._forget()
        self._answers = max(0, self._answers - 1)
        if self._spoken and self._live:
            await self._spoken_of()
        return await self._model.call(request)

    async def tool(self, intent: Mapping[str, Any], work: Work, reach: Reach) -> ToolResult:
        """As :func:`woodshed.harness.recorded.recorded`."""
        number, known = self._calls.pop(intent["call"], (0, None))
        if known is not None and (known.name, known.arguments) != (intent["name"], intent["arguments"]):
            self._tell_apart(f"call {known.call} was another then")
            known = None
        if self._ended and (known is None or known.seen is None):
            raise OutOfRecord
        if known is None:
            return await self._carry_out(intent, work)
        if known.seen is None:
            return await self._again(intent, work, reach)
        if number >= self._fine.restored.held:
            await self._redo(known, known.seen, work, reach)
        seen = known.seen
        return ToolResult(seen.content, seen.exit_code, seen.truncated, seen.timed_out, known.done, seen.blob,
                          seen.characters)

    async def between_turns(self) -> Sequence[str]:
        """A checkpoint where one is due; what the model must be told before the next turn."""
        self._turn += 1
        told = [text for turn, text in self._told if turn == self._turn]
        if self._ended or self._answers or (self._unasked and self._calls):
            return told
        if not self._live:
            text = await self._go_live()
            told += [text] if text else []
        leaving = self._fine.leaving()
        if leaving or self._due():
            await self._checkpoint("leaving" if leaving else "due")
        if leaving:
            raise asyncio.CancelledError("left for others to go on with")
        return told

    def remarks(self, turn: int) -> Sequence[int] | None:
        """As :attr:`Acting.remarks`: what depended on a sandbox that was lost is decided once."""
        return self._remarks.get(turn, () if self._answers else None)

    def played(self, turn: int, occasion: str) -> str | None:
        """As :attr:`Acting.played`: what was said is never decided anew."""
        return self._played.get((turn, occasion), "" if self._answers else None)

    async def hear(self, turn: int, finished: bool) -> Sequence[Said]:
        """As :data:`woodshed.interfaces.Hear`: first what was heard, where it was heard, and what is new once that is

        over.
        """
        known = [Said(*said) for said in self._heard.pop((turn, finished), ())]
        if self._answers or self._hear is None:
            return known
        return [*known, *await self._hear(turn, finished)]

    async def over(self) -> None:
        """The harness has ended: what was restored is told, where no further turn came."""
        if not self._live:
            await self._go_live(ended=True)

    # -- restoring -----------------------------------------------------------------------------------------------------

    @property
    def _replaying(self) -> bool:
        return bool(self._answers or self._calls)

    def _forget(self) -> None:
        """From here on nothing is taken from the record."""
        self._calls.clear()
        self._said.clear()

    def _confined(self, reach: Reach) -> bool:
        """Whether nothing of a call's effects can have left the sandbox."""
        acting = self._acting
        if reach == "sandbox":
            return not acting.agent.policy_within(acting.task.environment.limits, acting.task.network).network
        return reach == "files"

    async def _again(self, intent: Mapping[str, Any], work: Work, reach: Reach) -> ToolResult:
        """A call that was interrupted."""
        self._interrupted.append(intent["call"])
        if self._confined(reach):
            return await self._carry_out(intent, work)
        self._emit(EventKind.TOOL_RESULT, {
            **_parent(intent), "call": intent["call"], "content": INTERRUPTED, "exit_code": None, "truncated": False,
            "timed_out": False, "seconds": 0.0, "interrupted": True})
        await self._fine.keep()
        return ToolResult(INTERRUPTED)

    async def _carry_out(self, intent: Mapping[str, Any], work: Work) -> ToolResult:
        def emit(kind: EventKind, data: Mapping[str, Any]) -> None:
            self._emit(kind, {**_parent(intent), **data})

        return await carried_out(emit, intent, work, self._fine.keep)

    async def _redo(self, known: PastCall, then: Observation, work: Work, reach: Reach) -> None:
        """A call whose effects were lost with the sandbox."""
        if then.interrupted or not self._confined(reach):
            self._left_out.append(known.call)
            return
        started = time.perf_counter()
        now = await work()
        same = (now.content, now.exit_code, now.timed_out) == (then.content, then.exit_code, then.timed_out)
        self._redone.append(known.call)
        told: dict[str, Any] = {"state": "redone", "call": known.call, "name": known.name, "same": same,
                                "seconds": round(time.perf_counter() - started, 6)}
        if not same:
            self._differing.append(_difference(known, then, now))
            told |= {"exit_code": now.exit_code, "timed_out": now.timed_out, "content": now.content[:_SHOWN]}
        self._emit(EventKind.RESUME, told)

    async def _go_live(self, *, ended: bool = False) -> str:
        """All is as it can be, and the clock runs again; what the model must know of it, if anything."""
        self._live = True
        self._calls.clear()
        acting, past, restored = self._acting, self._fine.past, self._fine.restored
        spent = time.monotonic() - self._began
        if not ended:
            acting.deadline_s = spent + self._left_s
            self.wall.reschedule(asyncio.get_running_loop().time() + self._left_s)
        text = self._notice(restored) if past is not None and past.calls and not ended else ""
        self._emit(EventKind.RESUME, {
            "state": "live", "turn": self._turn, "seconds": round(spent, 6), **self.account, "text": text})
        await self._fine.keep()
        self._last_turn, self._last_at = self._turn, time.monotonic()
        if self._redone and not ended:
            await self._checkpoint("resumed")
        elif restored.checkpoint is not None:
            self._last_turn = restored.checkpoint.turn
        return text

    @property
    def account(self) -> dict[str, Any]:
        """What became of the calls whose effects were lost."""
        return {"redone": len(self._redone), "differing": len(self._differing), "not_repeated": self._left_out,
                "interrupted": self._interrupted}

    def _notice(self, restored: Restored) -> str:
        """What happened to the sandbox, for the model."""
        whence = f"its files after turn {restored.checkpoint.turn}" if restored.checkpoint else "its start"
        parts = [f"[The machine that you work on was lost. It was restored from {whence}. Gone are: "
                 f"{'; '.join(restored.lost)}. Start again what you need of it.]"]
        if self._redone:
            parts.append(f"[{len(self._redone)} of your calls since then were carried out again"
                         + (", with the same results.]" if not self._differing else
                            "; these had other results than you saw: " + _listed(self._differing) + "]"))
        if self._left_out:
            parts.append("[These calls may have had effects outside of the sandbox and were not carried out again; "
                         f"what they changed in files is lost: {_listed(self._left_out)}]")
        if self._interrupted:
            parts.append(f"[The machine was lost during: {_listed(self._interrupted)}]")
        return "\n".join(parts)

    def _tell_apart(self, what: str) -> None:
        """The harness does not do what it did then: another version, or one that is not to be resumed."""
        if not self._differs:
            self._differs = True
            self._emit(EventKind.RESUME, {"state": "differs", "what": what})

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def _due(self) -> bool:
        rule = self._fine.rule
        if self._turn <= self._last_turn:
            return False
        if rule.turns is not None and self._turn - self._last_turn >= rule.turns:
            return True
        return rule.minutes is not None and time.monotonic() - self._last_at >= 60 * rule.minutes

    async def _spoken_of(self) -> None:
        """What a person agreed to, or changed their mind upon, is kept before the agent acts upon their word."""
        self._spoken = False
        if self._turn > self._last_turn:
            await self._checkpoint("person")

    async def _checkpoint(self, why: str) -> None:
        """Keep the sandbox's files, where they can be kept."""
        self._last_turn = self._turn
        try:
            if await kept(self._acting.sandbox, self._blobs, self._emit, turn=self._turn, why=why, named=self._named):
                await self._fine.keep()
        finally:
            self._last_at = time.monotonic()


def _parent(intent: Mapping[str, Any]) -> dict[str, Any]:
    """Whose sub-task the call belongs to, where it does."""
    return {"parent": intent["parent"]} if "parent" in intent else {}


def _difference(call: PastCall, then: Observation, now: ToolResult) -> str:
    if then.exit_code != now.exit_code:
        return f"{call.call} ({call.name}: exit code {now.exit_code}, was {then.exit_code})"
    return f"{call.call} ({call.name}: {'out of time' if now.timed_out else 'another output'})"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
