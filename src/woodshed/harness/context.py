"""Conversation: what the model sees. Bounded by its window: old outputs go first, the task and the last turns stay."""

from __future__ import annotations

import json

from woodshed.errors import ModelRefused
from woodshed.harness.clip import clip
from woodshed.harness.dialects import Dialect, Reading
from woodshed.harness.limits import CHARS_PER_TOKEN
from woodshed.interfaces import Acting, ModelRequest, ModelResponse, ToolResult, ToolSpec
from woodshed.model import EventKind, Message, ToolCall

_OUTPUT_CHARS = 16_000
_SMALL = 300  # what is shorter is not worth leaving out
_KEPT_TURNS = 2
_ANSWER_TOKENS = 64  # the least room for an answer that can hold a call
_ROOM = 0.7  # of the window after leaving things out: not every turn again, so that the server's prompt cache holds


class Conversation:
    """The messages of one attempt, and what was made of the answers."""

    def __init__(self, acting: Acting, dialect: Dialect, tools: list[ToolSpec]) -> None:
        self._acting, self._specs = acting, tools
        model = acting.agent.model
        self._window = model.context_tokens if model else None
        self._most = model.sampling.max_tokens if model else 2048
        self._chars_per_token = CHARS_PER_TOKEN
        self._reading = Reading()
        self._turn = 0
        self._acted = self._worked = False
        self._begin(dialect)

    def _begin(self, dialect: Dialect) -> None:
        self.dialect, self.messages = dialect, list[Message]()
        self._tools = tuple(dialect.offers(self._specs))
        self._tool_chars = len(json.dumps([[tool.description, dict(tool.parameters)] for tool in self._tools]))
        workdir = self._acting.task.environment.workdir
        self._say("system", f"You are a coding agent working in a Linux shell, in the directory {workdir}.\n"
                            f"{dialect.manual(self._specs)}")
        self._say("user", self._acting.task.instruction)

    def fall_back(self, refusal: ModelRefused) -> bool:
        """Begin again in the dialect for servers that take no tools; False when this cannot be why it refused."""
        if self._turn or self.dialect.fallback is None:
            return False
        self._acting.emit(EventKind.NOTE, {"text": f"the server takes no tools, going on in text: {refusal}"})
        self._begin(self.dialect.fallback)
        return True

    def request(self, tokens_left: int | None) -> ModelRequest:
        """The next request, made to fit the window where it is known."""
        most = min(self._most, tokens_left or self._most)
        if self._window is not None:
            reserve = min(most, self._window // 2)
            if self.size() > (room := (self._window - reserve) * self._chars_per_token):
                self._leave_out(int(room * _ROOM))
            left = self._window - int(1.05 * self.size() / self._chars_per_token) - 16
            most = min(most, max(_ANSWER_TOKENS, left))
        return ModelRequest(messages=tuple(self.messages), tools=self._tools, max_tokens=most)

    def hear(self, response: ModelResponse) -> Reading:
        """Take the answer in. The ids of its calls become ours: unique in the attempt, nine letters and digits."""
        if response.prompt_tokens:
            self._chars_per_token = min(6.0, max(1.5, self.size() / response.prompt_tokens))
        self._turn += 1
        reading = self.dialect.read(response)
        calls = tuple(call.model_copy(update={"id": f"t{self._turn % 10_000:04d}c{number % 1000:03d}"})
                      for number, call in enumerate(reading.calls, 1))
        self._reading = Reading(calls, reading.native, reading.done, reading.complaint, reading.note)
        self.messages.append(Message(role="assistant", content=response.content,
                                     tool_calls=calls if reading.native else ()))
        return self._reading

    def observe(self, call: ToolCall, result: ToolResult, hint: str = "") -> None:
        """Show the model what its call did."""
        self._acted = True
        self._worked = result.exit_code in (0, None) and not result.timed_out
        limit = _OUTPUT_CHARS if self._window is None else min(
            _OUTPUT_CHARS, int(self._window * self._chars_per_token / 4))
        output = clip(result.content, limit)[0]
        notes = [note for note in (self._reading.note, hint) if note]
        if self._reading.native:
            code = [f"[exit code {result.exit_code}]"] if result.exit_code else []
            text = "\n".join([*code, output or "[no output]", *notes])
            self.messages.append(Message(role="tool", content=text, call=call.id))
            return
        then = ("If the task is done, reply DONE. If not, reply with the next command." if self._worked
                else "The command failed. Reply with a better one in a ```bash code block.")
        text = "\n".join([f"Exit code: {result.exit_code}", f"Output:\n{output}" if output else "No output.",
                          *notes, then])
        self.messages.append(Message(role="user", content=text))

    def over(self) -> bool:
        """True when an answer without a call is the end: the model says so, or speaks after work that succeeded.

        Nothing is the end before anything was done.
        """
        return self._acted and (self._reading.done or (self.dialect.prose_finishes and self._worked))

    def remind(self) -> None:
        """Tell the model what its last answer lacks."""
        end = " If the task is done, reply DONE." if self._acted and self.dialect.prose_finishes else ""
        self._say("user", self._reading.complaint + end)

    def tell(self, text: str) -> None:
        """Say to the model what no call of its own answers."""
        self._say("user", text)

    def shrink(self) -> bool:
        """Make the conversation much smaller, after the server said it is too long. False when it cannot be."""
        return self._leave_out(self.size() // 2)

    def size(self) -> int:
        """Characters of everything that is sent."""
        return self._tool_chars + sum(_length(message) for message in self.messages)

    def _say(self, role: str, content: str) -> None:
        self.messages.append(Message(role=role, content=content))
        self._acting.emit(EventKind.MESSAGE, {"role": role, "content": content})

    def _leave_out(self, goal: int) -> bool:
        """Shorten outputs, then the model's own words, oldest first, until ``goal`` characters are reached."""
        spoken = [index for index, message in enumerate(self.messages) if message.role == "assistant"]
        recent = spoken[-_KEPT_TURNS] if len(spoken) >= _KEPT_TURNS else 2
        count = 0
        for roles in (("tool", "user"), ("assistant",)):
            for index in range(2, recent):
                if self.messages[index].role in roles and self.size() > goal:
                    shorter = _shortened(self.messages[index])
                    count += shorter is not self.messages[index]
                    self.messages[index] = shorter
        if count:
            self._acting.emit(EventKind.NOTE, {"text": f"context: {count} old messages were shortened to save room"})
        return count > 0


def _length(message: Message) -> int:
    return len(message.content) + sum(len(json.dumps(call.arguments)) for call in message.tool_calls)


def _shortened(message: Message) -> Message:
    if message.role != "assistant":
        if len(message.content) <= _SMALL:
            return message
        return message.model_copy(update={
            "content": f"[{len(message.content)} characters of output were left out to save room]"})
    if _length(message) <= 2 * _SMALL:
        return message
    calls = tuple(call.model_copy(update={"arguments": {
        key: clip(value, _SMALL)[0] if isinstance(value, str) else value for key, value in call.arguments.items()}})
        for call in message.tool_calls)
    return message.model_copy(update={"content": clip(message.content, _SMALL)[0], "tool_calls": calls})
