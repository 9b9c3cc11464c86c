"""Person: the user of an attempt. Says what the task scripts, somebody sends, or a model says in their place.

Each thing is said once, between two turns.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from woodshed.errors import SandboxDied
from woodshed.harness.context import Conversation
from woodshed.harness.kit import Deed, Kit
from woodshed.harness.played import Played
from woodshed.harness.touched import touched
from woodshed.harness.turns import Entry
from woodshed.interfaces import Acting
from woodshed.model import EventKind, ToolCall
from woodshed.model.feedback import Cue, Remark
from woodshed.model.person import Occasion

_PATIENCE_S = 10.0
"""For a command that looks at the sandbox; one that takes longer has not ended as expected."""
_LOOKED_AT = 20_000  # characters of a call that are read, and
_READ = 200_000  # bytes of a file: both are the agent's


class Person:
    """One for each attempt, who takes part in its ``talk``; helpers of a sub-task meet nobody.

    What was said once, in whatever execution, is said at the same turn again, and never newly decided: the sandbox may
    not be what it was then.
    """

    def __init__(self, acting: Acting, kit: Kit, talk: Conversation) -> None:
        self._acting, self._kit, self._talk = acting, kit, talk
        alone = acting.parent is None
        step = acting.task.step_name
        self._open: dict[int, Remark] = {number: remark for number, remark in enumerate(acting.task.feedback)
                                         if alone and remark.step in (None, step)}
        self._hear = acting.hear if alone else None
        played = acting.task.person if alone else None
        self._played = Played(acting, played, talk) if played is not None else None

    async def speak(self, *, finished: bool = False) -> bool:
        """Say what is due between two turns, or upon being told that all is done. Whether anything was said."""
        scripted = await self._remark(finished=finished)
        sent = await self._pass_on(finished=finished)
        return scripted or sent or await self._play("finish" if finished else "turns")

    async def answer(self) -> bool:
        """Say something to an agent that asks in words, and calls nothing; whether anything was said."""
        return await self._play("question")

    async def _play(self, occasion: Occasion) -> bool:
        """Say what a model says that plays them."""
        turn = self._talk.turn
        if self._played is None or not turn or not self._played.due(turn, occasion):
            return False
        if said := await self._played.say(turn, occasion):
            self._say(said, turn, {"by": "model", "occasion": occasion})
        return bool(said)

    async def _pass_on(self, *, finished: bool) -> bool:
        """Say what somebody has sent."""
        if self._hear is None:
            return False
        turn = self._talk.turn
        heard = await self._hear(turn, finished)
        for said in heard:
            self._say(said.text, turn, {"message": said.message, **({"finish": True} if finished else {})})
        return bool(heard)

    async def _remark(self, *, finished: bool) -> bool:
        """Say what the task scripts."""
        if not self._open or not (turn := self._talk.turn):
            return False
        due = [number for number, remark in self._open.items() if remark.when.finish is finished]
        known = self._acting.remarks(turn) if self._acting.remarks is not None else None
        if known is not None:
            due = [number for number in due if number in known]
        else:
            due = [number for number in due if await self._holds(self._open[number].when, turn)]
        for number in due:
            remark = self._open.pop(number)
            expects = {"expects": remark.expects.model_dump(exclude_none=True)} if remark.expects is not None else {}
            self._say(remark.says, turn, {"remark": number, **expects})
        return bool(due)

    def _say(self, text: str, turn: int, told: Mapping[str, Any]) -> None:
        self._acting.emit(EventKind.FEEDBACK, {"said": text, "step": turn, **told})
        _close_calls(self._talk)
        self._talk.tell(text)

    async def _holds(self, when: Cue, turn: int) -> bool:
        """All of ``when`` but for its ``finish``; the sandbox is looked at last."""
        if when.turn is not None and turn < when.turn:
            return False
        return self._done(when) and await self._stands(when)

    def _done(self, when: Cue) -> bool:
        history = [deed for deed in self._kit.history if deed[0].error is None]
        return (
            (when.edits is None or self._edited(history, when.edits))
            and (when.tool is None or any(call.name == when.tool for call, _ in history))
            and (when.command is None or any(re.search(when.command, _text(call)) for call, _ in history))
        )

    def _edited(self, history: list[Deed], pattern: str) -> bool:
        workdir = self._acting.task.environment.workdir
        wanted = posixpath.join(workdir, pattern)
        return any(fnmatchcase(posixpath.normpath(posixpath.join(workdir, path)), wanted) for path in touched(history))

    async def _stands(self, when: Cue) -> bool:
        return (when.file is None or await self._has(when.file, when.contains)) and (
            when.check is None or await self._ends(when.check, when.exit_code))

    async def _has(self, file: str, contains: str | None) -> bool:
        path = posixpath.join(self._acting.task.environment.workdir, file)
        try:
            if contains is None:
                await self._acting.sandbox.stat(path)
                return True
            content = await self._acting.sandbox.read(path, max_bytes=_READ)
        except SandboxDied:
            raise
        except OSError:  # not there, no regular file, too large
            return False
        return re.search(contains, content.decode("utf-8", "replace")) is not None

    async def _ends(self, command: str, exit_code: int) -> bool:
        cwd = self._acting.task.environment.workdir or None
        done = await self._acting.sandbox.exec(command, cwd=cwd, timeout_s=_PATIENCE_S)
        return done.exit_code == exit_code and not done.timed_out


def _close_calls(talk: Conversation) -> None:
    """Calls that stood after a finish get an answer: a conversation that goes on has none without."""
    if not talk.turns:
        return
    last = talk.turns[-1]
    answered = {entry.call for entry in last.replies}
    for call in last.said.calls if last.said is not None else ():
        if call.id not in answered:
            last.replies.append(Entry("tool", "[not carried out: you had finished]", call=call.id))


def _text(call: ToolCall) -> str:
    """What a call runs, or what it was given; ``finish`` only names a command."""
    command = call.arguments.get("command")
    if call.name != "finish" and isinstance(command, str):
        return command[:_LOOKED_AT]
    return " ".join(f"{name}={value}" for name, value in call.arguments.items())[:_LOOKED_AT]
