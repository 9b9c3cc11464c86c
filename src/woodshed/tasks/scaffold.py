"""A first task to change into one's own: small, with everything a task that can be trusted has, and green as it is."""

from __future__ import annotations

from woodshed.model import Framework
from woodshed.tasks.runners import node_files, pytest_files, script_files
from woodshed.tasks.write import Draft

HEADER = """\
# The task's declaration. docs/tasks.md explains every key; docs/writing-tasks.md how to write a task to be trusted.
# What an agent sees: instruction.md and environment/workspace/. It never sees tests/ and solution/.
# After every change:  woodshed tasks check {folder}

"""
_INSTRUCTION = """\
# Read durations

`{file}` has the function `seconds`, which is not written yet. Write it: it takes a duration such as `"1h 30m"` and
returns the seconds as a whole number (here 5400).

- A duration is any number of parts with spaces between them; a part is a whole number and a unit, `h`, `m` or `s`.
- A unit may come twice: `"1m 1m"` is 120. An empty duration is 0.
- An unknown unit, a part without a number, or a number that is none {raises}.

Tests that you do not see judge the result.
"""
_START = '''\
"""Durations in words."""


def seconds(text):
    """The seconds of a duration such as ``1h 30m``. Raises ValueError for what is none."""
    raise NotImplementedError
'''
_FIXED = '''\
"""Durations in words."""

UNITS = {"h": 3600, "m": 60, "s": 1}


def seconds(text):
    """The seconds of a duration such as ``1h 30m``. Raises ValueError for what is none."""
    total = 0
    for part in text.split():
        number, unit = part[:-1], part[-1]
        if unit not in UNITS or not number.isdecimal():
            raise ValueError(part)
        total += int(number) * UNITS[unit]
    return total
'''
_TESTS = '''\
import pytest

from durations import seconds


@pytest.mark.parametrize(("text", "expected"), [
    ("1h 30m", 5400), ("2h", 7200), ("7m", 420), ("45s", 45), ("3h 2m 1s", 10921), ("1m 1m", 120), ("  10s   5s ", 15),
    ("", 0), ("0s", 0), ("100m", 6000),
])
def test_seconds(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["1d", "h", "xm", "-1s", "1.5h", "10", "1h 3", "1h m"])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError):
        seconds(text)
'''
_CHECK_SECONDS = '''\
from durations import seconds

CASES = {
    "1h 30m": 5400, "2h": 7200, "7m": 420, "45s": 45, "3h 2m 1s": 10921, "1m 1m": 120, "  10s   5s ": 15, "": 0,
    "0s": 0, "100m": 6000,
}
for text, expected in CASES.items():
    assert seconds(text) == expected, text
'''
_CHECK_ERRORS = '''\
from durations import seconds

for text in ("1d", "h", "xm", "-1s", "1.5h", "10", "1h 3", "1h m"):
    try:
        seconds(text)
    except ValueError:
        continue
    raise AssertionError(f"{text!r} is taken for a duration")
'''
_NODE_START = """\
// Durations in words.

// The seconds of a duration such as "1h 30m". Throws a RangeError for what is none.
export function seconds(text) {
  throw new Error('not written yet');
}
"""
_NODE_FIXED = """\
// Durations in words.

const UNITS = new Map([['h', 3600], ['m', 60], ['s', 1]]);

// The seconds of a duration such as "1h 30m". Throws a RangeError for what is none.
export function seconds(text) {
  let total = 0;
  for (const part of text.split(' ').filter(Boolean)) {
    const match = /^(\\d+)([hms])$/.exec(part);
    if (!match) throw new RangeError(part);
    total += Number(match[1]) * UNITS.get(match[2]);
  }
  return total;
}
"""
_NODE_TESTS = """\
import assert from 'node:assert/strict';
import test from 'node:test';
import { seconds } from '/workspace/durations.mjs';

const CASES = [
  ['1h 30m', 5400], ['2h', 7200], ['7m', 420], ['45s', 45], ['3h 2m 1s', 10921], ['1m 1m', 120], ['  10s   5s ', 15],
  ['', 0], ['0s', 0], ['100m', 6000],
];

test('seconds of durations', () => {
  for (const [text, expected] of CASES) assert.equal(seconds(text), expected, text);
});

test('what is no duration', () => {
  for (const text of ['1d', 'h', 'xm', '-1s', '1.5h', '10', '1h 3', '1h m', 'a1h', '1hh']) {
    assert.throws(() => seconds(text), RangeError, text);
  }
});
"""
_SOLVE = """\
#!/bin/bash
set -e
cp /solution/{file} {file}
"""


def scaffold(framework: Framework) -> Draft:
    """The draft of a first task whose hidden tests ``framework`` runs."""
    node = framework is Framework.NODE
    file = "durations.mjs" if node else "durations.py"
    start, fixed = (_NODE_START, _NODE_FIXED) if node else (_START, _FIXED)
    tests, expected = _TESTED[framework]
    return Draft(
        instruction=_INSTRUCTION.format(file=file, raises="throws a RangeError" if node else "raises ValueError"),
        workspace={file: start.encode()},
        tests=tests,
        solution={"solve.sh": _SOLVE.format(file=file).encode(), file: fixed.encode()},
        framework=framework,
        expected_tests=expected,
        agent_timeout_s=600.0,
        verifier_timeout_s=60.0,
        metadata={"difficulty": "easy"},
    )


def _ids() -> tuple[str, ...]:
    good = ("1h 30m-5400", "2h-7200", "7m-420", "45s-45", "3h 2m 1s-10921", "1m 1m-120", "  10s   5s -15", "-0", "0s-0",
            "100m-6000")
    bad = ("1d", "h", "xm", "-1s", "1.5h", "10", "1h 3", "1h m")
    return (*(f"test_durations::test_seconds[{name}]" for name in good),
            *(f"test_durations::test_what_is_no_duration[{name}]" for name in bad))


_TESTED: dict[Framework, tuple[dict[str, bytes], tuple[str, ...]]] = {
    Framework.PYTEST: (pytest_files({"test_durations.py": _TESTS.encode()}), _ids()),
    Framework.SCRIPT: (
        script_files({"check_seconds.py": _CHECK_SECONDS.encode(), "check_errors.py": _CHECK_ERRORS.encode()}),
        ("check_seconds", "check_errors"),
    ),
    Framework.NODE: (
        node_files({"durations.test.mjs": _NODE_TESTS.encode()}),
        ("test::seconds of durations", "test::what is no duration"),
    ),
}
