"""A long attempt in a small window: every request fits it by the server's own count, and no fact is out of reach."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scripted import Attempt, a_task, act, said
from woodshed.harness.loop import Loop
from woodshed.model import EnvironmentSpec, EventKind, SandboxPolicy, StopReason, Upload
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.store.blobs import Blobs

WINDOW, ANSWER = 8192, 512
_PIECES = re.compile(r"[a-z]{1,4}|[A-Z]{1,2}|\d|\s|[^\w\s]|_")
"""The server's tokenizer: no part of it is that of our weights."""


def tokens(body: dict[str, Any]) -> int:
    return len(_PIECES.findall(json.dumps([body["messages"], body.get("tools")], ensure_ascii=False)))


@dataclass
class Model:
    """Works through ``turns`` turns, comes upon facts on the way, and at the end has only its window to find them.

    What it needs it takes from what the request shows: handles from the log, facts from what reading them gives.
    """

    turns: int
    facts: dict[int, str]
    """By the turn in which the fact is come upon; what it is, is known to the world alone."""
    counted: list[int] = field(default_factory=list)
    refused: int = 0
    found: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._acts = self._work()
        self._shown = ""
        self._body: dict[str, Any] = {}

    @property
    def late(self) -> int:
        """The turn in which it begins to look."""
        ways = [number % 3 for number in range(len(self.facts))]
        return self.turns - sum(1 if way == 0 else 2 for way in ways) - 2

    def answer(self, body: dict[str, Any]) -> dict[str, Any] | tuple[int, str]:
        count = tokens(body)
        if count + body["max_tokens"] > WINDOW:
            self.refused += 1
            return 400, "the request exceeds the available context size"
        self.counted.append(count)
        self._body, self._shown = body, body["messages"][-1]["content"]
        name, arguments, words = next(self._acts)
        return said(words, (name, arguments), tokens=count)

    def _work(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        chance = random.Random(4)
        for turn in range(1, self.late):
            if turn == 3:
                yield "plan", {"steps": "[x] look around\n[ ] gather the facts\n[ ] write answers.txt"}, "I plan."
            elif turn in self.facts:
                yield "bash", {"command": f"cat fact{turn}.txt"}, f"Fact {turn} may matter later."
            else:
                long = chance.choice((3, 20, 150))
                yield "bash", {"command": f"echo step {turn}; head -{long} noise.txt | tail -{long - 1}"}, "Go on. " * 9
        task = self._body["messages"][1]["content"]
        assert "[ ] gather the facts" in task
        assert task.startswith("Gather the facts.")
        for number, turn in enumerate(self.facts):
            yield from (self._by_text, self._by_log, self._by_place)[number % 3](turn)
        lines = "".join(f"{turn} {fact}\n" for turn, fact in sorted(self.found.items()))
        yield "write_file", {"path": "answers.txt", "content": lines}, ""
        yield "bash", {"command": "cat answers.txt"}, ""
        while True:
            yield "finish", {"summary": "All facts are written.", "command": "cat answers.txt", "exit_code": 0}, ""

    def _by_text(self, turn: int) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Looks for the text in everything that there was."""
        yield "read_output", {"find": f"fact {turn} is"}, ""
        self._take(turn)

    def _by_log(self, turn: int) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Finds the handle in the log, and the text in that one output."""
        yield "read_output", {"handle": "log", "find": f"fact{turn}.txt"}, ""
        yield "read_output", {"handle": self._handle(), "find": "is"}, ""
        self._take(turn)

    def _by_place(self, turn: int) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Reads the middle of the output, which it has never seen."""
        yield "read_output", {"handle": "log", "find": f"fact{turn}.txt"}, ""
        yield "read_output", {"handle": self._handle(), "offset": 9_900, "limit": 300}, ""
        self._take(turn)

    def _handle(self) -> str:
        found = re.search(r"t\d{4}c001", self._shown)
        assert found is not None, self._shown
        return found[0]

    def _take(self, turn: int) -> None:
        found = re.search(rf"fact {turn} is (\w+)", self._shown)
        assert found is not None, self._shown
        self.found[turn] = found[1]


def fact(turn: int) -> str:
    return hashlib.sha256(f"fact {turn}".encode()).hexdigest()[:16]


def world(folder: Path, turns: list[int]) -> Path:
    """Files with the facts in the middle of 20,000 characters, where no clipped output shows them."""
    folder.mkdir()
    chance = random.Random(1)
    words = [chance.randbytes(4).hex() for _ in range(400)]
    (folder / "noise.txt").write_text("\n".join(" ".join(chance.choices(words, k=6)) for _ in range(400)))
    for turn in turns:
        noise = " ".join(chance.choices(words, k=1200))
        (folder / f"fact{turn}.txt").write_text(f"{noise[:10_000]}\nfact {turn} is {fact(turn)}\n{noise[-10_000:]}\n")
    return folder


async def attempt(folder: Path, home: Path, turns: int, facts: list[int]) -> tuple[Attempt, Model, bytes]:
    """The whole of it, in a real sandbox; with it the file that the model wrote."""
    model = Model(turns, dict.fromkeys(facts, ""))
    start = world(folder / "start", facts)
    task = a_task(folder, instruction="Gather the facts.",
                  environment=EnvironmentSpec(uploads=(Upload(source=start, target="/workspace"),)))
    engine = NativeEngine(home)
    answer: Callable[[dict[str, Any]], Any] = model.answer
    try:
        box = await engine.create(task.environment, SandboxPolicy())
        done = await act(
            Loop(), folder, answer, box=box, task=task, context_tokens=WINDOW, max_tokens=ANSWER, deadline_s=600,
            limits={"turns": turns + 20, "tool_calls": turns + 20}, tools=("default", "plan"),
            blobs=Blobs(folder / "blobs"))
        return done, model, await box.read("/workspace/answers.txt")
    finally:
        await engine.close()


async def check(folder: Path, home: Path, turns: int, facts: list[int]) -> None:
    done, model, written = await attempt(folder, home, turns, facts)
    assert done.stop is StopReason.FINISHED
    assert written.decode() == "".join(f"{turn} {fact(turn)}\n" for turn in sorted(facts))
    assert model.refused == 0
    assert len(model.counted) == len(done.requests) == done.acting.usage.turns == turns
    assert max(model.counted) <= WINDOW
    shown = json.dumps(done.requests[model.late - 1]["messages"])
    assert not any(fact(turn) in shown for turn in facts)  # when it begins to look, none is in sight
    packed = done.of(EventKind.COMPACTION)
    assert packed
    assert all(data["tokens_after"] < data["tokens_before"] for data in packed)
    assert done.of(EventKind.FINISH)[-1]["shown"]
    clipped = [data for data in done.of(EventKind.TOOL_RESULT) if "characters" in data]
    assert len(clipped) >= len(facts)
    blobs = Blobs(folder / "blobs")
    for data in clipped:
        with blobs.open(data["blob"]) as whole:
            assert len(whole.read().decode()) == data["characters"]


async def test_sixty_turns_keep_every_fact_in_reach(tmp_path: Path, shed_home: Path) -> None:
    """In a window of 8,192 tokens, three facts come upon early are found again by text, by log and by place."""
    await check(tmp_path, shed_home, 60, [5, 11, 20])


@pytest.mark.slow
async def test_two_hundred_turns_keep_every_fact_in_reach(tmp_path: Path, shed_home: Path) -> None:
    """The same over 200 turns, with six facts from the fifth turn on."""
    await check(tmp_path, shed_home, 200, [5, 33, 60, 90, 120, 150])
