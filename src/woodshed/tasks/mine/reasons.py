"""Why a commit became no task: a closed list, so that tables and programs can count."""

from __future__ import annotations

from enum import StrEnum

from pydantic import field_validator

from woodshed.model import Record


class Reason(StrEnum):
    """Why a commit is not kept. The first half is read off the commit, the second is what its runs said."""

    MERGE = "merge"
    INITIAL = "initial"
    REVERT = "revert"
    REVERTED = "reverted"
    DOCS_ONLY = "docs_only"
    FORMATTING_ONLY = "formatting_only"
    NO_TESTS_CHANGED = "no_tests_changed"
    NO_SOURCE_CHANGED = "no_source_changed"
    TOO_LARGE = "too_large"
    UNLOADABLE = "unloadable"
    ENVIRONMENT = "environment_fails"
    TOO_SLOW = "too_slow"
    NEEDS_NETWORK = "needs_network"
    TESTS_PASS_BEFORE = "tests_pass_before"  # noqa: S105 - no password
    TESTS_FAIL_AFTER = "tests_fail_after"
    TESTS_SKIPPED = "tests_skipped"
    FLAKY = "flaky"
    UNSOUND = "unsound"

    @property
    def sentence(self) -> str:
        """The reason for people."""
        return _SENTENCES[self]


_SENTENCES = {
    Reason.MERGE: "a merge: its changes are those of other commits",
    Reason.INITIAL: "has no parent: there is nothing before it",
    Reason.REVERT: "takes another commit back",
    Reason.REVERTED: "was taken back by a later commit",
    Reason.DOCS_ONLY: "changes documents, comments or docstrings only",
    Reason.FORMATTING_ONLY: "changes the layout of code only",
    Reason.NO_TESTS_CHANGED: "changes no test",
    Reason.NO_SOURCE_CHANGED: "changes no source",
    Reason.TOO_LARGE: "changes, or holds, too much for one task",
    Reason.UNLOADABLE: "its files cannot stand in a task's workspace",
    Reason.ENVIRONMENT: "its requirements cannot be installed",
    Reason.TOO_SLOW: "its tests do not end in time",
    Reason.NEEDS_NETWORK: "its tests need a network",
    Reason.TESTS_PASS_BEFORE: "its tests pass without it",
    Reason.TESTS_FAIL_AFTER: "its tests fail with it",
    Reason.TESTS_SKIPPED: "its tests are skipped here",
    Reason.FLAKY: "its tests pass and fail by chance",
    Reason.UNSOUND: "the task does not hold what a task must",
}


class Rejection(Record):
    """A commit that is not kept. ``detail`` says what was seen, on a line."""

    reason: Reason
    detail: str = ""

    @field_validator("detail")
    @classmethod
    def _one_line(cls, detail: str) -> str:
        """Names of theirs need not be Unicode, and may hold line ends."""
        return " ".join(detail.encode("utf-8", "replace").decode().split())[:400]
