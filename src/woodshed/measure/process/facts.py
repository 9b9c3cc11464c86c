"""Facts: one attempt as the process measures see it. Made once, from records; nothing in it is live."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from posixpath import basename
from typing import Any

from woodshed.measure.trajectory import from_events, seqs
from woodshed.model import ChangeSet, Event, EventKind, Observation, StopReason, ToolCall, Trajectory, Usage, Valid
from woodshed.model.acts import Act, acts_of
from woodshed.model.commands import bare, parts, redirections
from woodshed.model.counted import counted
from woodshed.model.feedback import Feedback
from woodshed.model.grade import Patch
from woodshed.model.process import Citation, Rating

_LOOKED_AT = 20_000  # characters of a command that are read: the text is hostile


@dataclass(frozen=True, slots=True)
class Made:
    """One tool call, what came of it, and what it did to the work.

    ``number`` counts from 1; ``seconds`` are since the attempt's first event. ``own`` is False for a sub-task's.
    """

    number: int
    seq: int
    step: int
    call: ToolCall
    seen: Observation | None
    acts: tuple[Act, ...]
    seconds: float
    own: bool = True

    @property
    def command(self) -> str | None:
        """What it runs in a shell; None for other tools. ``finish`` only names a command."""
        command = self.call.arguments.get("command")
        if self.call.name == "finish" or self.call.error is not None or not isinstance(command, str):
            return None
        return command[:_LOOKED_AT]

    @property
    def text(self) -> str:
        """The command, or the arguments as JSON."""
        if self.command is not None:
            return self.command
        return json.dumps(self.call.arguments, ensure_ascii=False)[:_LOOKED_AT]

    @property
    def shown(self) -> str:
        """What it was, for a sentence: the tool and the beginning of what it was given."""
        text = " ".join(self.text.split())
        return f"{self.call.name} {text[:77] + '…' if len(text) > 78 else text}"[:110]

    @property
    def edits(self) -> bool:
        """True where it may have changed the work."""
        return any(act.edits for act in self.acts)

    @property
    def checks(self) -> bool:
        """True where it was a check."""
        return any(act.checks for act in self.acts)

    def words(self) -> list[str]:
        """Programs and what they were given, options left out; of a tool of files, its name and paths."""
        command = self.command
        if command is None:
            return [self.call.name, *(str(self.call.arguments[key]) for key in ("path", "pattern")
                                      if key in self.call.arguments)]
        try:
            simple = [bare(redirections(words)[0]) for words in parts(command)]
        except ValueError:  # quotes that do not close
            simple = [command.split()]
        return [word for words in simple for word in words if not word.startswith("-")]

    def names(self, path: str) -> bool:
        """True where a word of it is ``path``, or the end of it from some folder on."""
        return any(_same_file(word, path) for word in self.words())

    def cited(self, why: str) -> Citation:
        """This call, as what brought a measure down."""
        return Citation(seq=self.seq, step=self.step, why=why)


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of a model. ``calls`` are how many tool calls it made."""

    seq: int
    step: int
    message: str
    calls: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Edited:
    """A file of the end beside that of the start; None: not there, or no text that can be compared."""

    path: str
    before: bytes | None
    after: bytes | None
    binary: bool = False


@dataclass(frozen=True)
class Facts:
    """One execution's events, and what the store tells besides.

    ``patch`` and ``reference`` are None where unknown (``unknown`` says why, by name), ``failed_before`` the expected
    tests that fail on the untouched start, ``files`` the changed files with their contents. ``micros`` is what its
    tokens cost.
    """

    events: Sequence[Event]
    verdict: Valid | None = None
    stopped: StopReason | None = None
    workdir: str = "/workspace"
    test_command: str = ""
    patch: Patch | None = None
    reference: Patch | None = None
    failed_before: tuple[str, ...] | None = None
    files: tuple[Edited, ...] | None = None
    ratings: tuple[Rating, ...] = ()
    usage: Usage = field(default_factory=Usage)
    micros: int | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)

    def why_not(self, name: str) -> str:
        """Why ``name`` is None."""
        return self.unknown.get(name, "it is not in the record")

    def of(self, kind: EventKind) -> Iterator[Event]:
        """Events of one kind."""
        return (event for event in self.events if event.kind is kind)

    @cached_property
    def trajectory(self) -> Trajectory:
        """Its steps; none where nothing was recorded."""
        if not self.events:
            return Trajectory(attempt="", execution=0, task="", agent="")
        return from_events(self.events, task="", agent="")

    @cached_property
    def changes(self) -> ChangeSet:
        """What was captured at the end."""
        found = [event.data for event in self.of(EventKind.CHANGES) if "changes" in event.data]
        return ChangeSet.model_validate(found[-1]) if found else ChangeSet()

    @cached_property
    def stop(self) -> StopReason | None:
        """Why acting ended."""
        if self.stopped is not None:
            return self.stopped
        stops = [event.data["stop"] for event in self.of(EventKind.STATE) if "stop" in event.data]
        return StopReason(stops[-1]) if stops and stops[-1] in set(StopReason) else None

    @property
    def no_edit(self) -> str:
        """What is to be said where no call is known to have edited: changes may have come by one that hides them."""
        changed = {change.path for change in self.changes.changes}
        return f"no call is known for an edit, yet {counted(len(changed), 'path')} changed" if changed else \
            "nothing was edited"

    @cached_property
    def acts(self) -> list[Act]:
        """What the agent did, as reward rules see it."""
        return acts_of(self.trajectory, [change.path for change in self.changes.changes], (), self.test_command)

    @cached_property
    def calls(self) -> list[Made]:
        """Every tool call, in order."""
        at, begun = self._times
        acts: dict[int, list[Act]] = {}
        for act in self.acts:
            acts.setdefault(act.call, []).append(act)
        found: list[Made] = []
        for step, (_, seqs_of_calls) in zip(self.trajectory.steps, seqs(self.events), strict=True):
            seen = {observation.call: observation for observation in step.observations}
            for call, seq in zip(step.tool_calls, seqs_of_calls, strict=True):
                number = len(found) + 1
                found.append(Made(number, seq, step.index, call, seen.get(call.id), tuple(acts.get(number, ())),
                                  (at[seq] - begun).total_seconds(), step.parent is None))
        return found

    @cached_property
    def turns(self) -> list[Turn]:
        """Every answer of a model, in order; none for an agent that asks no model."""
        answers = {event.seq for event in self.of(EventKind.MODEL_RESULT)}
        return [Turn(seq, step.index, step.message, len(step.tool_calls),
                     0 if step.inherited else (step.prompt_tokens or 0) + (step.completion_tokens or 0))
                for step, (seq, _) in zip(self.trajectory.steps, seqs(self.events), strict=True) if seq in answers]

    @cached_property
    def feedback(self) -> list[tuple[int, Feedback]]:
        """What was said while it worked, with the event's ``seq``; what is no Feedback is left out."""
        found: list[tuple[int, Feedback]] = []
        for event in self.of(EventKind.FEEDBACK):
            try:
                found.append((event.seq, Feedback.model_validate(_known(event.data))))
            except ValueError:
                continue
        return found

    def refused_between(self, low: int, high: int) -> Mapping[str, Any] | None:
        """A decision of the sandbox's policy between two events that refused something; None where there was none."""
        return next((event.data for event in self._refused if low < event.seq < high), None)

    def result_seq(self, made: Made) -> int:
        """The ``seq`` of a call's result; that of the last event where it has none."""
        return self._results.get(made.call.id, self.events[-1].seq + 1)

    @cached_property
    def _refused(self) -> list[Event]:
        return [event for event in self.of(EventKind.POLICY) if event.data.get("verdict") == "refused"]

    @cached_property
    def _results(self) -> dict[str, int]:
        return {str(event.data["call"]): event.seq for event in self.of(EventKind.TOOL_RESULT) if "call" in event.data}

    @cached_property
    def _times(self) -> tuple[dict[int, datetime], datetime]:
        at = {event.seq: event.at for event in self.events}
        return at, min(at.values(), default=datetime.min)


def relative(path: str, workdir: str) -> str:
    """A path of the sandbox as seen from the working directory."""
    top = workdir.rstrip("/") + "/"
    return path.removeprefix(top)


def _same_file(word: str, path: str) -> bool:
    word = word.strip("'\"").removeprefix("./")
    return bool(word) and (path == word or path.endswith("/" + word.lstrip("/")))


def _known(data: Mapping[str, Any]) -> dict[str, Any]:
    """Of an event's data what a Feedback has: further keys are somebody else's."""
    return {name: data[name] for name in ("said", "step", "expects") if name in data}


def quoted(word: str) -> str:
    """A word for a sentence, short."""
    return shlex.quote(word if len(word) <= 60 else word[:59] + "…")


def name_of(path: str) -> str:
    """The last part of a path."""
    return basename(path.rstrip("/"))
