"""The gate of a black-box agent: what counts against its turns, and what is written down of what it asks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from localbox import LocalBox
from scripted import a_task
from woodshed.errors import ContextExceeded, ModelRefused, ModelUnreachable
from woodshed.harness.external.gate import Counted
from woodshed.harness.external.observe import Reader
from woodshed.interfaces import Acting, ModelRequest, ModelResponse
from woodshed.model import Agent, AgentLimits, EventKind, Message, StopReason


class Gate:
    """One with ``turns``, and what it wrote down."""

    def __init__(self, folder: Path, turns: int) -> None:
        self.told: list[tuple[EventKind, Mapping[str, Any]]] = []
        agent = Agent(name="a", harness="external:command:x", limits=AgentLimits(turns=turns))
        self.counted = Counted(Acting(
            task=a_task(folder), agent=agent, sandbox=LocalBox(folder), model=None, seed=0, deadline_s=1000.0,
            emit=lambda kind, data: self.told.append((kind, data))), Reader())

    def ask(self, words: str = "go on") -> bool:
        """Whether it is let in."""
        return isinstance(self.counted.before(ModelRequest((Message(role="user", content=words),))), ModelRequest)

    def answered(self) -> bool:
        if let_in := self.ask():
            self.counted.after(ModelRequest(()), ModelResponse("ok", prompt_tokens=1))
        return let_in

    def failed(self, fault: Exception | None) -> bool:
        if let_in := self.ask():
            self.counted.failed(fault)
        return let_in


def refused(status: int) -> ModelRefused:
    fault = ModelRefused("refused")
    fault.status = status
    return fault


@pytest.mark.parametrize(("fault", "counts"), [
    (None, True), (refused(400), True), (ContextExceeded("too long"), True),
    (refused(401), False), (ModelUnreachable("down"), False),
], ids=["given up", "refused", "too long", "key", "down"])
def test_calls_in_vain_are_turns_where_they_are_its_own_doing(
    tmp_path: Path, fault: Exception | None, counts: bool
) -> None:
    """What it gives up, or the endpoint refuses to read, is charged; what the endpoint breaks is not."""
    gate = Gate(tmp_path, turns=5)
    assert gate.answered()
    let_in = sum(gate.failed(fault) for _ in range(10))
    assert let_in == (4 if counts else 10)
    assert gate.counted.reached is (StopReason.TURNS if counts else None)


def test_an_endpoint_that_refuses_from_the_start_stays_its_own_fault(tmp_path: Path) -> None:
    """After twenty refusals nothing more is sent, no limit was reached, and the fault is what it ended upon."""
    gate = Gate(tmp_path, turns=5)
    assert sum(gate.failed(refused(400)) for _ in range(50)) == 20
    assert gate.counted.reached is None
    assert gate.counted.met.is_set()
    assert isinstance(gate.counted.fault, ModelRefused)


def test_what_is_not_let_in_is_written_down_once(tmp_path: Path) -> None:
    """The first request beyond a limit tells the last results; words that come after it fill no record."""
    gate = Gate(tmp_path, turns=1)
    assert gate.answered()
    assert not any(gate.ask(f"more {number}") for number in range(10))
    assert [data["content"] for kind, data in gate.told if kind is EventKind.MESSAGE] == ["go on", "more 0"]
