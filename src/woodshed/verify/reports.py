"""Readers of what a test run leaves: JUnit XML, CTRF JSON, Harbor's reward files. Pure: hostile bytes in, facts out.

Every reader raises :class:`Unreadable` for what is not exactly its format, and nothing else, whatever the bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from xml.parsers import expat

from woodshed.model import TestOutcome

MAX_REPORT_BYTES = 10_000_000
MAX_REWARD_BYTES = 64_000
MAX_CASES = 200_000
MAX_DEPTH = 200
MAX_REWARDS = 200

# Control characters that XML forbids but runners print into messages (colours); names never need them.
_PLAIN = bytes(0x3F if code < 0x20 and code not in (9, 10, 13) else code for code in range(256))
_WEIGHT = {TestOutcome.PASSED: 0, TestOutcome.SKIPPED: 1, TestOutcome.ERROR: 2, TestOutcome.FAILED: 3}
_CHILDREN = {"failure": TestOutcome.FAILED, "error": TestOutcome.ERROR, "skipped": TestOutcome.SKIPPED}
_STATUS = {  # the attribute some writers use instead of a child; an unknown word is no pass
    "": TestOutcome.PASSED, "run": TestOutcome.PASSED, "passed": TestOutcome.PASSED, "pass": TestOutcome.PASSED,
    "success": TestOutcome.PASSED, "ok": TestOutcome.PASSED, "completed": TestOutcome.PASSED,
    "failed": TestOutcome.FAILED, "fail": TestOutcome.FAILED, "notrun": TestOutcome.SKIPPED,
    "skipped": TestOutcome.SKIPPED, "disabled": TestOutcome.SKIPPED, "ignored": TestOutcome.SKIPPED,
}
_CTRF = {"passed": TestOutcome.PASSED, "failed": TestOutcome.FAILED, "skipped": TestOutcome.SKIPPED,
         "pending": TestOutcome.SKIPPED, "other": TestOutcome.ERROR}


class Unreadable(ValueError):
    """The bytes are not a report of this format. ``forged`` is True for what no runner writes (a DTD, an entity)."""

    def __init__(self, message: str, *, forged: bool = False) -> None:
        super().__init__(message)
        self.forged = forged


@dataclass(frozen=True, slots=True)
class Case:
    """One entry of a report. ``id`` is ``classname::name``, or ``name`` alone where there is no class or suite."""

    id: str
    name: str
    outcome: TestOutcome


@dataclass(frozen=True, slots=True)
class Report:
    """All entries of one report, in its order, duplicates kept."""

    cases: tuple[Case, ...]
    format: str

    def outcomes(self, wanted: str) -> tuple[TestOutcome, ...]:
        """What the report says about the id ``wanted``, once for each entry."""
        return tuple(case.outcome for case in self.cases if case.id == wanted)

    def by_id(self) -> dict[str, list[TestOutcome]]:
        """Every id with all that is said about it."""
        table: dict[str, list[TestOutcome]] = {}
        for case in self.cases:
            table.setdefault(case.id, []).append(case.outcome)
        return table

    def named(self, name: str) -> tuple[TestOutcome, ...]:
        """What is said about tests of this bare name, whatever their class (``path::name`` counts too)."""
        return tuple(case.outcome for case in self.cases if case.name == name or case.name.endswith("::" + name))


def read_junit(content: bytes) -> Report:
    """The report in JUnit XML as pytest, node and others write it. Raises Unreadable.

    Only ``testcase`` elements count, wherever they stand. A document type or entity is refused: no runner writes one.
    """
    reader = _Junit()
    reader.parse(_bounded(content, MAX_REPORT_BYTES))
    return Report(tuple(reader.cases), "junit")


class _Junit:
    """Expat callbacks, so that depth and size cost nothing but a counter."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self.depth = 0
        self.root = ""
        self.open: list[tuple[int, dict[str, str], list[TestOutcome]]] = []

    def parse(self, content: bytes) -> None:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.StartDoctypeDeclHandler = self.refuse
        parser.EntityDeclHandler = self.refuse
        try:
            parser.Parse(content.translate(_PLAIN), True)
        except expat.ExpatError as error:
            raise Unreadable(f"not well-formed XML: {error}") from None
        except (ValueError, LookupError) as error:  # an encoding that is none
            if isinstance(error, Unreadable):
                raise
            raise Unreadable(f"not readable XML: {error}") from None

    def refuse(self, *_: object) -> None:
        raise Unreadable("a document type or entity in a test report", forged=True)

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable(f"nested deeper than {MAX_DEPTH}", forged=True)
        if self.depth == 1:
            self.root = tag
            if tag not in ("testsuites", "testsuite"):
                raise Unreadable(f"root element {tag[:40]!r} is no test report")
        if tag == "testcase":
            self.open.append((self.depth, attributes, []))
        elif tag in _CHILDREN and self.open and self.depth == self.open[-1][0] + 1:
            self.open[-1][2].append(_CHILDREN[tag])

    def end(self, tag: str) -> None:
        if tag == "testcase":
            _, attributes, seen = self.open.pop()
            seen.append(_STATUS.get(attributes.get("status", "").lower(), TestOutcome.ERROR))
            outcome = max(seen, key=lambda item: _WEIGHT[item])
            self.cases.append(_case(attributes.get("classname", ""), attributes.get("name", ""), outcome))
            if len(self.cases) > MAX_CASES:
                raise Unreadable(f"more than {MAX_CASES} tests", forged=True)
        self.depth -= 1


def _case(group: str, name: str, outcome: TestOutcome) -> Case:
    return Case(f"{group}::{name}" if group else name, name, outcome)


def read_ctrf(content: bytes) -> Report:
    """The report in CTRF JSON (ctrf.io): ``results.tests[]`` with name, status and maybe suite. Raises Unreadable."""
    data = _json(_bounded(content, MAX_REPORT_BYTES))
    results = data.get("results") if isinstance(data, dict) else None
    tests = results.get("tests") if isinstance(results, dict) else None
    if not isinstance(tests, list):
        raise Unreadable("no results.tests list")
    if len(tests) > MAX_CASES:
        raise Unreadable(f"more than {MAX_CASES} tests", forged=True)
    return Report(tuple(_ctrf_case(entry) for entry in tests), "ctrf")


def _ctrf_case(entry: Any) -> Case:
    name = entry.get("name") if isinstance(entry, dict) else None
    status = entry.get("status") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not isinstance(status, str):
        raise Unreadable("a test without name and status")
    suite = entry.get("suite") or ""
    if isinstance(suite, list) and all(isinstance(part, str) for part in suite):
        suite = " > ".join(suite)  # newer CTRF writes the path of suites as a list
    if not isinstance(suite, str):
        raise Unreadable("a suite that is no text")
    return _case(suite, name, _CTRF.get(status, TestOutcome.ERROR))


def read_reward_json(content: bytes) -> dict[str, float]:
    """Harbor's ``reward.json``: a flat object, name → finite number. Raises Unreadable."""
    data = _json(_bounded(content, MAX_REWARD_BYTES))
    if not isinstance(data, dict) or not data:
        raise Unreadable("not an object with at least one reward")
    if len(data) > MAX_REWARDS or any(len(name) > 200 for name in data):
        raise Unreadable("too many rewards, or a name over 200 characters")
    return {_printable(name): _number(value) for name, value in data.items()}


def read_reward_txt(content: bytes) -> dict[str, float]:
    """Harbor's ``reward.txt``: one finite number, as the reward called ``reward``. Raises Unreadable."""
    try:
        text = _bounded(content, MAX_REWARD_BYTES).decode("ascii").strip()
        return {"reward": _number(float(text))}
    except (UnicodeDecodeError, ValueError) as error:
        raise error if isinstance(error, Unreadable) else Unreadable("not one number") from None


def total_of(rewards: Mapping[str, float]) -> float:
    """One number from Harbor's rewards: ``reward`` when there is one, else the least of all (all must be done)."""
    return rewards["reward"] if "reward" in rewards else min(rewards.values())


def _printable(name: str) -> str:
    if not name or not name.isprintable():
        raise Unreadable("a reward's name that is empty or not printable")
    return name


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unreadable("a reward that is no number")
    try:
        number = float(value)
    except OverflowError:
        raise Unreadable("a reward that is not finite") from None
    if not math.isfinite(number):
        raise Unreadable("a reward that is not finite")
    return number


def _bounded(content: bytes, limit: int) -> bytes:
    if len(content) > limit:
        raise Unreadable(f"over {limit} bytes")
    return content


def _json(content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"), parse_constant=_refused)
    except Unreadable:
        raise
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {type(error).__name__}") from None


def _refused(word: str) -> Any:
    raise Unreadable(f"{word} is no number of JSON")
