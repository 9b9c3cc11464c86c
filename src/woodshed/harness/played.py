"""Played: what a model says that plays a task's person. It sees what somebody sees who watches the agent, and no more.

That is: the task as it was told, the agent's words and calls, and the beginning of what they gave. Neither tests nor
reference are within its reach, and what it is told of itself is not within the agent's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from woodshed.harness.clip import clip
from woodshed.harness.context import Conversation
from woodshed.harness.turns import Turn
from woodshed.interfaces import Acting, Emit, ModelRequest, ModelResponse
from woodshed.model import EventKind, Message
from woodshed.model.person import Occasion, PersonSpec

_SILENT = "NOTHING"
_WORDS, _CALL, _SHOWN = 2_000, 600, 400
"""Characters of what the agent wrote, of each of its calls, and of what that gave."""
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_NO_WORDS = re.compile(rf"\W*{_SILENT}\W*", re.IGNORECASE)
_OF: dict[Occasion, str] = {
    "finish": "The agent says that it is done. Is it what you wanted? If so, or if you have nothing to add,",
    "question": "The agent has said this to you and waits. Answer it as this person would. If you do not want to,",
    "turns": "The agent is still at work. Do you want to tell it something? If not,",
}
_ROLE = """You play a person who gave a coding agent a task and watches it work. You are that person, and not the agent.

What you want and know, which the agent was not told:
{goal}
{character}
Speak to the agent as this person would: a few short sentences, no code, no headings. Tell it what it asks for if you \
know it, and nothing that this person would not know or say. Never do the work, and never speak of being a model. \
When you have nothing to say, reply with the one word NOTHING."""


_KINDS = {EventKind.MODEL_CALL: EventKind.PERSON_CALL, EventKind.MODEL_RESULT: EventKind.PERSON_RESULT}


def apart(emit: Emit) -> Emit:
    """For the model calls of a person: in kinds of their own, so that nothing of them is taken for the agent's."""
    def told(kind: EventKind, data: Mapping[str, Any]) -> None:
        if kind is EventKind.NOTE:  # a name of a call in it would be that of one of the agent's, too
            data = {"text": f"of the person: {data['text']}"}
        emit(_KINDS.get(kind, kind), data)

    return told


class Played:
    """The person of one attempt. Raises what a failing endpoint raises: that is no doing of the agent's."""

    def __init__(self, acting: Acting, spec: PersonSpec, talk: Conversation) -> None:
        self._acting, self._spec, self._talk = acting, spec, talk
        role = _ROLE.format(goal=spec.goal.strip(),
                            character=f"\nHow you are: {spec.character.strip()}\n" if spec.character else "")
        self._messages = [Message(role="system", content=role)]
        self._seen = self._asked = self._spoken = self._tokens = 0

    def due(self, turn: int, occasion: Occasion) -> bool:
        """Whether they are to be asked now."""
        if self._spoken >= self._spec.times:
            return False
        if occasion == "turns":
            return self._spec.every is not None and turn - self._asked >= self._spec.every
        return occasion in self._spec.when

    async def say(self, turn: int, occasion: Occasion) -> str:
        """What they say now; empty where that is nothing. What the record has of it is not asked for again."""
        self._asked = turn
        known = self._acting.played(turn, occasion) if self._acting.played is not None else None
        said = known if known is not None else await self._ask(turn, occasion)
        self._spoken += bool(said)
        return said

    async def _ask(self, turn: int, occasion: Occasion) -> str:
        model = self._acting.person
        if model is None or self._tokens >= self._spec.tokens:
            return ""
        self._messages.append(Message(role="user", content=self._happened(occasion)))
        response = await model.call(ModelRequest(tuple(self._messages), max_tokens=self._spec.answer_tokens))
        said = words(response)
        self._messages.append(Message(role="assistant", content=said or _SILENT))
        self._tokens += response.prompt_tokens + response.completion_tokens
        if self._tokens >= self._spec.tokens:
            self._acting.emit(EventKind.NOTE, {"text": f"the person is silent from turn {turn} on: their calls took "
                                                       f"{self._tokens} of {self._spec.tokens} tokens"})
        return said

    def _happened(self, occasion: Occasion) -> str:
        """What they see: the task at first, and then each time what is new."""
        new = [each for each in self._talk.turns if each.number > self._seen]
        self._seen = self._talk.turn
        first = len(self._messages) == 1
        parts = [f"Your task for the agent was:\n{self._acting.task.instruction.strip()}"] if first else []
        parts += ["What it did since:" if not first else "What it did:", *_shown(new)] if new else []
        return "\n\n".join([*parts, f"{_OF[occasion]} reply {_SILENT}."])


def words(response: ModelResponse) -> str:
    """What the person says in an answer of their model; empty where that is nothing."""
    said = _THOUGHT.sub("", response.content).strip().strip('"').strip()
    return "" if _NO_WORDS.fullmatch(said) else said


def _shown(turns: Sequence[Turn]) -> list[str]:
    found = []
    for turn in turns:
        if turn.said is not None and (said := _THOUGHT.sub("", turn.said.body).strip()):
            found.append(f"It said: {clip(said, _WORDS)[0]}")
        for call, seen in turn.deeds:
            given = ", ".join(f"{name}={value}" for name, value in call.arguments.items())
            exit_code = f" (exit code {seen.exit_code})" if seen.exit_code else ""
            found.append(f"It ran {call.name}: {clip(given, _CALL)[0]}\nThat gave{exit_code}: "
                         f"{clip(seen.content, _SHOWN)[0] or '[nothing]'}")
    return found
