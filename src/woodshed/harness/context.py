"""Conversation: what the model sees. Bounded by its window, and nothing is left out of it without a handle.

Everything said here is a function of the answers and results that came, in their order: fed the same ones again it is
the same conversation.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from woodshed.errors import ModelRefused
from woodshed.harness.compaction import Compaction, Held
from woodshed.harness.dialects import FAMILIES, Dialect, Reading
from woodshed.harness.dialects.typed import Types
from woodshed.harness.finishing import ended_by_words
from woodshed.harness.kit import CHARS, Kit, read_again, read_again_in_text
from woodshed.harness.room import Room
from woodshed.harness.tokens import Gauge, weigh_tools
from woodshed.harness.touched import touched
from woodshed.harness.turns import Entry, Turn
from woodshed.interfaces import Acting, ModelRequest, ModelResponse, ToolResult, ToolSpec
from woodshed.model import EventKind, Message, StopReason, ToolCall


class Conversation:
    """The messages of one attempt, and what was made of the answers."""

    def __init__(self, acting: Acting, dialect: Dialect, tools: list[ToolSpec], kit: Kit, *, prefix: str = "t") -> None:
        self._acting, self._specs, self._kit, self._prefix = acting, tools, kit, prefix
        model = acting.agent.model
        self._recalls = model is None or model.reasoning == "send"
        self._room = Room(model.context_tokens if model else None, model.sampling.max_tokens if model else 2048)
        self._gauge = Gauge()
        self._reading = Reading()
        self._acted = self._worked = False
        self._noted = 0
        kit.fitting = self._fitting
        self._begin(dialect)

    def _begin(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._tools = tuple(dialect.offers(self._specs))
        self._kit.how = read_again if self._tools or dialect.name in FAMILIES else read_again_in_text
        workdir = self._acting.task.environment.workdir
        system = Entry("system", f"You are a coding agent working in a Linux shell, in the directory {workdir}.\n"
                                 f"{dialect.manual(self._specs)}")
        self._held = Held(weigh_tools(self._tools), system, Entry("user", self._acting.task.instruction))
        self._compaction = Compaction(self._held, self._kit, self._gauge, self._room.summary)
        for entry in self._held.entries():
            self._acting.emit(EventKind.MESSAGE, {"role": entry.role, "content": entry.body})

    @property
    def turns(self) -> list[Turn]:
        """Those that are not left out."""
        return self._held.turns

    @property
    def turn(self) -> int:
        """How often the model has answered."""
        return self.turns[-1].number if self.turns else 0

    @property
    def messages(self) -> list[Message]:
        """All that is sent. What is said to it at once is one message: many templates demand that roles change."""
        found: list[Message] = []
        for message in (entry.message for entry in self._held.entries()):
            if found and found[-1].role == message.role == "user":
                message = message.model_copy(update={"content": f"{found.pop().content}\n{message.content}"})
            found.append(message)
        return found

    def fall_back(self, refusal: ModelRefused) -> bool:
        """Begin again in the dialect for servers that take no tools; False when this cannot be why it refused."""
        if self.turn or self.dialect.fallback is None:
            return False
        self._acting.emit(EventKind.NOTE, {"text": f"the server takes no tools, going on in "
                                                   f"{self.dialect.fallback.name}: {refusal}"})
        told = [text for turn in self.turns for text in turn.told]
        self._begin(self.dialect.fallback)
        for text in told:
            self.tell(text)
        return True

    def request(self, tokens_left: int | None) -> ModelRequest:
        """The next request, made to fit the window where it is known."""
        most = self._room.answer(tokens_left)
        if (goal := self._room.goal(self.tokens(), most)) is not None:
            self._compaction.to(*goal)
        return ModelRequest(messages=tuple(self.messages), tools=self._tools, parent=self._acting.parent,
                            max_tokens=self._room.left(self.tokens(), most), chat=self.dialect.chat)

    def hear(self, response: ModelResponse) -> Reading:
        """Take the answer in. The ids of its calls become ours: unique in the attempt, nine letters and digits."""
        self._gauge.learn(self._held.weight, response.prompt_tokens)
        number = self.turn + 1
        reading = self.dialect.read(response, self._specs)
        calls = tuple(call.model_copy(update={"id": f"{self._prefix}{number % 10_000:04d}c{count % 1000:03d}"})
                      for count, call in enumerate(reading.calls, 1))
        self._reading = replace(reading, calls=calls)
        thought = response.reasoning if self._recalls else ""
        said = Entry("assistant", response.content, calls=calls if reading.native else (), reasoning=thought)
        if calls and reading.family is not None:
            said = Entry("assistant", reading.said, calls=calls, written=response.content, reasoning=thought,
                         spell=partial(reading.family.write, types=Types(self._specs)))
        self.turns.append(Turn(number, said))
        return self._reading

    def observe(self, call: ToolCall, result: ToolResult, hint: str = "") -> None:
        """Show the model what its call did."""
        self._acted = True
        self._worked = result.exit_code in (0, None) and not result.timed_out
        turn, before = self.turns[-1], self._noted
        turn.deeds.append(self._kit.note(call, result))
        turn.files += touched(self._kit.history[before:])  # those of helpers among them
        self._noted = len(self._kit.history)
        notes = [note for note in (self._reading.note, hint) if note]
        family = self._reading.family
        if self._reading.native or (family is not None and self.dialect.chat is not None):
            self._answered(call, result, notes)
            return
        if family is not None:
            start, end = family.around(call)
            self.turns[-1].replies.append(Entry(
                "user", family.shield.on(result.content) or "[no output]",
                head=f"{start}\n[exit code {result.exit_code}]" if result.exit_code else start,
                tail="\n".join([*([end] if end else []), *notes]), handle=call.id))
            return
        then = ("If the task is done, reply DONE. If not, reply with the next command." if self._worked
                else "The command failed. Reply with a better one in a ```bash code block.")
        head = f"Exit code: {result.exit_code}\n{'Output:' if result.content else 'No output.'}"
        self.turns[-1].replies.append(Entry(
            "user", result.content, head=head, tail="\n".join([*notes, then]), handle=call.id))

    def _answered(self, call: ToolCall, result: ToolResult, notes: list[str]) -> None:
        """A result as a message of its own kind, which the server's template writes, or the dialect's chat format."""
        self.turns[-1].replies.append(Entry(
            "tool", result.content or "[no output]", head=f"[exit code {result.exit_code}]" if result.exit_code else "",
            tail="\n".join(notes), handle=call.id, call=call.id))

    def over(self) -> bool:
        """True when an answer without a call is the end: the model says so, or speaks after work that succeeded.

        Nothing is the end before anything was done, nor a call that could not be read.
        """
        ended = self._reading.done or (self.dialect.prose_finishes and self._worked)
        return self._acted and ended and not self._reading.attempted

    def end(self) -> StopReason:
        """The model's words were the end of it: they are a claim like that of ``finish``."""
        ended_by_words(self._kit, self.last_words())
        return StopReason.FINISHED

    def remind(self, hint: str = "") -> None:
        """Tell the model what its last answer lacks."""
        end = " If the task is done, reply DONE." if self._acted and self.dialect.prose_finishes else ""
        self._say(" ".join(part for part in (hint, self._reading.complaint + end) if part))

    def tell(self, text: str) -> None:
        """Say to the model what no call of its own answers."""
        self._say(text)
        self.turns[-1].told.append(text)

    def last_words(self) -> str:
        """The summary that the model finished with, or what it wrote last."""
        if self._kit.history and self._kit.history[-1][0].name == "finish":
            return str(self._kit.history[-1][0].arguments.get("summary", ""))
        return next((turn.said.body for turn in reversed(self.turns) if turn.said is not None), "")

    def shrink(self) -> bool:
        """Make the conversation much smaller, after the server said it is too long. False when it cannot be."""
        half = self.tokens() // 2
        return self._compaction.to(half, half)

    def tokens(self) -> int:
        """About how many tokens are sent, by what the server counted last."""
        return self._gauge.tokens(self._held.weight)

    def _fitting(self, text: str) -> int:
        """Characters of ``text`` that one output of this turn may have."""
        return self._room.characters(text, self._gauge, len(self._reading.calls), CHARS)

    def _say(self, content: str) -> None:
        if not self.turns:
            self.turns.append(Turn(0))
        self.turns[-1].replies.append(Entry("user", content))
        self._acting.emit(EventKind.MESSAGE, {"role": "user", "content": content})
