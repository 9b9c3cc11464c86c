"""What runs of the same tests before and after a commit say of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from woodshed.model import Record, TestOutcome
from woodshed.tasks.mine.paths import module_of
from woodshed.tasks.mine.reasons import Reason, Rejection

TIMES = 3
"""Runs of each side."""
Side = Literal["before", "after"]
_NETWORK = re.compile(
    r"Temporary failure in name resolution|Name or service not known|nodename nor servname|No address associated with|"
    r"NameResolutionError|Failed to resolve|getaddrinfo|gaierror|Network is unreachable|No route to host|"
    r"ClientConnectorDNSError|ENETUNREACH|EAI_AGAIN|Could not resolve host|Errno 101\]|Errno -[23]\]",
)
"""What programs say in a sandbox without network when they look for one: names that no one resolves, no route.
A refused connection is not among them: that is a program talking to itself."""


class Ran(Record):
    """One run of the tests on one side. ``outcomes`` is None where no report was left; ``network`` are the ids whose

    failure tells of a missing network (``*`` where the whole run's output does, and there is no report).
    ``installed``: a release of the project itself came with its requirements, where who solves the task could read it.
    """

    side: Side
    outcomes: dict[str, TestOutcome] | None
    network: tuple[str, ...] = ()
    timed_out: bool = False
    installed: bool = False
    detail: str = ""


class Pair(Record):
    """What a kept commit's runs come to: ids that fail before and pass after, that always pass, and that vary."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    unstable: tuple[str, ...]


def speaks_of_network(text: str) -> bool:
    """True where a failure's text tells of a name that was not resolved, or of no road to an address."""
    return bool(_NETWORK.search(text))


def judge(runs: Sequence[Ran], test_files: Sequence[str]) -> Pair | Rejection:
    """The pair that ``runs`` (at least one a side) prove, or why they prove none.

    ``test_files`` are those that the commit changed.
    """
    before, after = _side(runs, "before"), _side(runs, "after")
    if any(ran.installed for ran in runs):
        return Rejection(reason=Reason.UNSOUND, detail="its requirements bring a release of the project itself")
    if none := [ran for ran in (*after, *before) if ran.timed_out or (ran.side == "after" and ran.outcomes is None)]:
        return _no_report(none[0])
    ids = sorted({test for ran in runs for test in ran.outcomes or {}})
    passing = {test: [_passes(ran, test) for ran in after] for test in ids}
    earlier = {test: [_passes(ran, test) for ran in before] for test in ids}
    unstable = [test for test in ids if len(set(passing[test])) > 1 or len(set(earlier[test])) > 1]
    good = [test for test in ids if all(passing[test]) and test not in set(unstable) and _named(test)]
    mended = tuple(test for test in good if not any(earlier[test]))
    if mended:
        return Pair(fail_to_pass=mended, pass_to_pass=tuple(test for test in good if all(earlier[test])),
                    unstable=tuple(unstable))
    mine = [test for test in ids if _of(test, test_files)]
    return _why_not(mine, set(unstable), after)


def settled(verdict: Pair | Rejection) -> bool:
    """True where further runs would tell nothing new after the first of each side."""
    return isinstance(verdict, Rejection) and verdict.reason not in (Reason.FLAKY, Reason.TESTS_FAIL_AFTER)


def _side(runs: Sequence[Ran], side: Side) -> list[Ran]:
    return [ran for ran in runs if ran.side == side]


def _passes(ran: Ran, test: str) -> bool:
    return ran.outcomes is not None and ran.outcomes.get(test) is TestOutcome.PASSED


def _named(test: str) -> bool:
    return bool(test.strip()) and test.isprintable()


def _no_report(ran: Ran) -> Rejection:
    if ran.timed_out:
        return Rejection(reason=Reason.TOO_SLOW, detail=ran.detail)
    reason = Reason.NEEDS_NETWORK if ran.network else Reason.TESTS_FAIL_AFTER
    return Rejection(reason=reason, detail=ran.detail or "no report")


def _of(test: str, files: Sequence[str]) -> bool:
    """True for a test of one of ``files``; a file that cannot be imported is reported under its own name."""
    group = test.partition("::")[0]
    return any(group == module or group.startswith(module + ".") or test.endswith(f"::{module}") or test == module
               for module in map(module_of, files))


def _why_not(mine: Sequence[str], unstable: set[str], after: Sequence[Ran]) -> Rejection:
    last = after[0].outcomes or {}
    failing = [test for test in mine if last.get(test) in (TestOutcome.FAILED, TestOutcome.ERROR)]
    network = {test for ran in after for test in ran.network}
    if away := [test for test in mine if test in network]:
        return Rejection(reason=Reason.NEEDS_NETWORK, detail=_shown(away))
    if varying := [test for test in mine if test in unstable]:
        return Rejection(reason=Reason.FLAKY, detail=_shown(varying))
    if failing:
        return Rejection(reason=Reason.TESTS_FAIL_AFTER, detail=_shown(failing))
    if mine and all(last.get(test, TestOutcome.SKIPPED) is TestOutcome.SKIPPED for test in mine):
        return Rejection(reason=Reason.TESTS_SKIPPED, detail=_shown(mine))
    return Rejection(reason=Reason.TESTS_PASS_BEFORE, detail=_shown(mine) if mine else "none of its tests was run")


def _shown(tests: Sequence[str]) -> str:
    more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
    return tests[0][:160] + more
