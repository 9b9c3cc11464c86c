"""Laws of noticing circles: never upon progress, always upon a cycle, told before stopped."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.harness.stuck import LONGEST, STOP_AT, TELL_AT, VARY_STOP_AT, VARY_TELL_AT, Repeats
from woodshed.interfaces import ToolResult
from woodshed.model import EventKind, ToolCall

COMMANDS = st.sampled_from(["ls", "cat a", "cat b", "pytest -q", "make", "git diff", "pwd", "true"])
Deed = tuple[str, str, int]


class Watched:
    """Repeats, fed call after call, each in a turn of its own unless said otherwise."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.repeats = Repeats(lambda kind, data: self.events.append({"kind": kind, **data}))
        self.turn = 0

    def see(self, command: str, output: str, code: int = 0, *, same_turn: bool = False) -> str:
        self.turn += not same_turn
        call = ToolCall(id=f"t{self.turn:04d}c001", name="bash", arguments={"command": command})
        return self.repeats.see(call, ToolResult(output, code), self.turn)


@given(st.lists(st.tuples(COMMANDS, st.sampled_from([0, 1])), max_size=80))
def test_new_results_are_progress(deeds: list[tuple[str, int]]) -> None:
    """However alike the calls are, as long as each result is a new one nobody is told anything."""
    watched = Watched()
    for number, (command, code) in enumerate(deeds):
        word = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        assert watched.see(command, f"result {word}", code) == ""
    assert watched.events == []
    assert not watched.repeats.hopeless


@settings(max_examples=50)
@given(st.lists(st.tuples(COMMANDS, st.text("xyz", max_size=3), st.sampled_from([0, 1])), min_size=1,
                max_size=LONGEST, unique=True),
       st.lists(st.text("pq", min_size=1, max_size=6), max_size=10, unique=True))
def test_a_cycle_is_always_noticed_and_at_last_stopped(cycle: list[Deed], before: list[str]) -> None:
    """Whatever came before: told by the end of the third round, and stopped by the end of the sixth, not sooner."""
    watched = Watched()
    for word in before:
        watched.see("start", f"result {word}")
    told: list[int] = []
    for number in range((STOP_AT + 1) * len(cycle)):
        if watched.see(*cycle[number % len(cycle)]):
            told.append(number + 1)
        if watched.repeats.hopeless:
            break
    assert watched.repeats.hopeless
    assert told[0] <= TELL_AT * len(cycle)
    assert len(told) >= 2
    assert [event["told"] for event in watched.events] == [True] * (len(watched.events) - 1) + [False]
    last = watched.events[-1]
    assert last["kind"] is EventKind.STUCK
    assert len(last["calls"]) == last["period"] * last["times"]
    assert len(cycle) % last["period"] == 0


@given(st.integers(1, 40))
def test_one_answer_alone_stops_nobody(times: int) -> None:
    """Calls of one answer were made before anything could be told: they are told of, and stop nothing."""
    watched = Watched()
    hints = [watched.see("cat a", "nothing", 1, same_turn=True) for _ in range(times)]
    assert not watched.repeats.hopeless
    assert bool(hints[-1]) is (times >= TELL_AT)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 10**6), min_size=VARY_STOP_AT + 1, max_size=VARY_STOP_AT + 1, unique=True),
       st.sampled_from(['pip  install "x=={}"', "python3 -c 'f({})'", "sed -n {}p  missing"]))
def test_the_same_error_with_trivial_changes_is_a_circle(numbers: list[int], form: str) -> None:
    """Calls that fail alike but for numbers, spacing and quotes: told at the fourth, stopped at the tenth."""
    watched = Watched()
    for count, number in enumerate(numbers, 1):
        command = form.format(number).replace("  ", " " * (1 + count % 3))
        hint = watched.see(command, f"Error at line {number}:  no such thing (0x{number:x})", 1)
        assert bool(hint) is (count >= VARY_TELL_AT)
        assert watched.repeats.hopeless is (count >= VARY_STOP_AT)
        if watched.repeats.hopeless:
            break
    assert watched.events[-1]["pattern"] == "variations"


@given(st.lists(st.integers(0, 999), min_size=5, max_size=30, unique=True))
def test_numbers_that_lead_somewhere_are_no_variations(numbers: list[int]) -> None:
    """Calls that succeed may differ in numbers alone: pages of a file, pages of an output."""
    watched = Watched()
    assert not any(watched.see(f"sed -n {number}p a", f"line {number}") for number in numbers)


@given(st.text("abc 12", min_size=1, max_size=20), st.integers(2, 5))
def test_the_same_words_are_told(words: str, times: int) -> None:
    """Words without a call, equal but for spacing and numbers, are told from the second time on; a call ends it."""
    watched = Watched()
    hints = [watched.repeats.say(words.replace(" ", " " * (1 + count)).replace("1", str(count + 3)))
             for count in range(times)]
    assert [bool(hint) for hint in hints] == [False] + [True] * (times - 1)
    watched.see("ls", "a")
    assert watched.repeats.say(words) == ""
