"""What was done once more, held against what was recorded: results of tools, files at the end, the verdict. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from woodshed.measure.volatile import settled
from woodshed.model import ChangeSet, Event, EventKind, Record, Valid, Verdict

_SHOWN = 400
Key = tuple[str, int]
"""A call's id, and how often it had occurred before: each step of a task numbers its calls anew."""


@dataclass(frozen=True, slots=True)
class Done:
    """One call, and what it answered; None where that was never recorded."""

    name: str
    arguments: dict[str, Any]
    seen: dict[str, Any] | None


class Divergence(Record):
    """A call that went otherwise than then. ``what`` says how, ``then`` and ``now`` the outputs where they differ."""

    call: str
    name: str
    what: str
    then: str = ""
    now: str = ""


class Compared(Record):
    """``same`` results were equal, ``settled`` ones but for what is volatile; the rest diverged."""

    same: int = 0
    settled: int = 0
    diverged: tuple[Divergence, ...] = ()

    def plus(self, other: Compared) -> Compared:
        """Both together."""
        return Compared(same=self.same + other.same, settled=self.settled + other.settled,
                        diverged=(*self.diverged, *other.diverged))


def calls(events: Sequence[Event]) -> dict[Key, Done]:
    """Every call of a list of events, in order."""
    found, begun, ended = dict[Key, Done](), Counter[str](), Counter[str]()
    for event in events:
        name = str(event.data.get("call"))
        if event.kind is EventKind.TOOL_CALL and "call" in event.data:
            found[name, begun[name]] = Done(str(event.data.get("name")), event.data.get("arguments") or {}, None)
            begun[name] += 1
        elif event.kind is EventKind.TOOL_RESULT and (made := found.get((name, ended[name]))) is not None:
            found[name, ended[name]] = Done(made.name, made.arguments, event.data)
            ended[name] += 1
    return found


def compared(then: Sequence[Event], now: Sequence[Event], *, held: Collection[str] = ()) -> Compared:
    """The calls of both, in the order of ``then``; those ``held`` (ids) were not made again, and are left out."""
    before, after = calls(then), calls(now)
    same, alike, diverged = 0, 0, list[Divergence]()
    for key, old in before.items():
        if key[0] in held or old.seen is None or old.seen.get("interrupted"):
            after.pop(key, None)
            continue
        new = after.pop(key, None)
        what = "it was not made again" if new is None or new.seen is None else _difference(old, new)
        if what == "":
            same += 1
        elif what == "settled":
            alike += 1
        else:
            diverged.append(_diverged(key, old, new, what))
    diverged += [_diverged(key, new, new, "it is not in the record") for key, new in after.items()]
    return Compared(same=same, settled=alike, diverged=tuple(diverged))


def unsaid(then: Sequence[Event], now: Sequence[Event]) -> tuple[tuple[Divergence, ...], list[Event]]:
    """Words to the model that were not said again, but for what is volatile; and those of ``now`` that are new."""
    left = [event for event in now if event.kind is EventKind.MESSAGE]
    missing = list[Divergence]()
    for event in then:
        if event.kind is not EventKind.MESSAGE:
            continue
        said = _words(event)
        again = next((one for one in left if _words(one) == said), None)
        if again is None:
            missing.append(Divergence(call="message", name=said[0], what="it was not said again",
                                      then=str(event.data.get("content", ""))[:_SHOWN]))
        else:
            left.remove(again)
    return tuple(missing), left


def _words(event: Event) -> tuple[str, str]:
    return str(event.data.get("role", "user")), settled(str(event.data.get("content", "")))


def _diverged(key: Key, old: Done, new: Done | None, what: str) -> Divergence:
    seen = (new.seen or {}) if new is not None else {}
    return Divergence(call=key[0], name=old.name, what=what, then=str((old.seen or {}).get("content", ""))[:_SHOWN],
                      now=str(seen.get("content", ""))[:_SHOWN])


def _difference(old: Done, new: Done) -> str:
    """How a call differs; "settled" where only in what is volatile, and empty where not at all."""
    assert old.seen is not None
    assert new.seen is not None
    if (old.name, old.arguments) != (new.name, new.arguments):
        return f"it was another call: {new.name}"
    if old.seen.get("timed_out") != new.seen.get("timed_out"):
        return "it ran out of time" if new.seen.get("timed_out") else "it had run out of time"
    if old.seen.get("exit_code") != new.seen.get("exit_code"):
        return f"exit code {new.seen.get('exit_code')}, was {old.seen.get('exit_code')}"
    first, second = str(old.seen.get("content", "")), str(new.seen.get("content", ""))
    if first == second:
        return ""
    return "settled" if settled(first) == settled(second) else "another output"


def verdict_difference(then: Verdict, now: Verdict) -> list[str]:
    """What of two verdicts differs that says anything about the work; ``total`` is the rules' own, and not compared."""
    if not isinstance(then, Valid) or not isinstance(now, Valid):
        return [] if then.kind == now.kind and then.cause == now.cause else [
            f"{now.kind} ({now.cause.value if now.cause else 'passed'}), was {then.kind}"]
    found = [f"{name}: {getattr(now, name)}, was {getattr(then, name)}"
             for name in ("passed", "rewards", "cause", "assurance") if getattr(now, name) != getattr(then, name)]
    if set(then.flags) != set(now.flags):
        found.append(f"flags: {sorted(now.flags)}, was {sorted(then.flags)}")
    return found + [f"{test}: {now.tests.get(test)}, was {then.tests.get(test)}"
                    for test in sorted(then.tests.keys() | now.tests.keys())
                    if then.tests.get(test) != now.tests.get(test)]


def files_difference(then: ChangeSet, now: ChangeSet) -> list[str]:
    """Paths that the end states do not share."""
    first, second = ({change.path: change for change in changes.changes} for changes in (then, now))
    return sorted(path for path in first.keys() | second.keys() if first.get(path) != second.get(path))
