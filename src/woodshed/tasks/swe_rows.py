"""Rows of SWE-bench and its kin, whose columns tell which of them they are, as one kind of case.

SWE-bench: Jimenez et al., 2023; SWE-Gym: Pan et al., 2024 (the same columns); SWE-rebench: Badertdinov et al., 2025
(and ``install_config``); SWE-smith: Yang et al., 2025 (``patch`` makes the bug); R2E-Gym: Jain et al., 2025
(``commit_hash`` is the fix, the tests are in the row).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from woodshed.tasks.declare import plain_requirement
from woodshed.tasks.rows import Item
from woodshed.tasks.sources import COMMIT, REPO

Family = Literal["swe-bench", "swe-gym", "swe-rebench", "swe-smith", "r2e"]
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PATH = re.compile(r"[^\x00-\x1f\x7f/]{1,200}")
_SMITH = re.compile(r"(?:[\w.-]+/)?([A-Za-z0-9_.-]+?)__([A-Za-z0-9_.-]+)\.([0-9a-f]{7,40})")
_R2E_TESTS = "r2e_tests"
MAX_TESTS = 50_000
_FOREIGN = frozenset({"pytest", "pip", "setuptools", "wheel"})


@dataclass(frozen=True, slots=True)
class Case:
    """What a row asks for. Patches are of ``git diff``; test names as the row has them.

    ``bug`` makes the start of the commit's files, ``fix`` the reference of the start; without ``fix`` the reference
    is what the bug changed, or what ``fixed_by``, a commit, changed of the files that are no tests. ``tests`` are
    contents by path, in place of a ``test_patch``.
    """

    item: Item
    family: Family
    name: str
    repo: str
    commit: str
    statement: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    bug: bytes = b""
    fix: bytes = b""
    test_patch: bytes = b""
    fixed_by: str = ""
    tests: Mapping[str, bytes] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


def family_of(item: Item) -> Family:
    """Which data set's columns these are. Raises UsageError where none's."""
    has = item.values.keys()
    if {"commit_hash", "expected_output_json"} <= has:
        return "r2e"
    if not {"patch", "FAIL_TO_PASS"} <= has:
        missing = "patch" if "patch" not in has else "FAIL_TO_PASS"
        raise item.wrong(missing, "missing, and these are no columns of R2E's",
                         "Pass rows of SWE-bench, SWE-smith, SWE-Gym, SWE-rebench or R2E.")
    if "test_patch" not in has:
        return "swe-smith"
    if "install_config" in has:
        return "swe-rebench"
    return "swe-bench" if "environment_setup_commit" in has else "swe-gym"


def case_of(item: Item) -> Case:
    """The case of a row. Raises UsageError naming the row's file, line and field."""
    family = family_of(item)
    if family == "r2e":
        return _r2e(item)
    name = _matching(item, "instance_id", item.text("instance_id"), _ID)
    common: dict[str, Any] = {
        "item": item, "family": family, "name": name, "statement": item.text("problem_statement"),
        "fail_to_pass": _tests(item, "FAIL_TO_PASS"), "pass_to_pass": _tests(item, "PASS_TO_PASS"),
    }
    if not common["fail_to_pass"]:
        raise item.wrong("FAIL_TO_PASS", "names no test", "Leave the row out: nothing would have to be mended.")
    patch = _patch(item, "patch")
    if family == "swe-smith":
        repo, commit = _smith(item)
        return Case(**common, repo=repo, commit=commit, bug=patch, facts=_facts(item, "image_name"))
    return Case(
        **common, repo=_matching(item, "repo", item.text("repo"), REPO), fix=patch,
        commit=_matching(item, "base_commit", item.text("base_commit"), COMMIT), test_patch=_patch(item, "test_patch"),
        requirements=_installed(item) if family == "swe-rebench" else (),
        facts=_facts(item, "version", "created_at", "environment_setup_commit", "license_name", "docker_image",
                     "image_name"),
    )


def _smith(item: Item) -> tuple[str, str]:
    """SWE-smith's mirrors are named after owner, name and commit."""
    match = _SMITH.fullmatch(item.text("repo"))
    commit = item.values.get("base_commit")
    if match is None and isinstance(commit, str) and COMMIT.fullmatch(commit):
        return _matching(item, "repo", item.text("repo"), REPO), commit
    if match is None:
        raise item.wrong("repo", f"{item.text('repo')[:80]!r} names no commit", "Write owner__name.commit.")
    return f"{match[1]}/{match[2]}", match[3]


def _r2e(item: Item) -> Case:
    commit = _matching(item, "commit_hash", item.text("commit_hash"), COMMIT)
    repo = _matching(item, "repo_name", item.text("repo_name"), REPO)
    content, parsed = item.table("execution_result_content"), item.table("parsed_commit_content")
    names, codes = content.get("test_file_names"), content.get("test_file_codes")
    if not isinstance(names, list) or not isinstance(codes, list) or len(names) != len(codes) or not names:
        raise item.wrong("execution_result_content", "has no test files", "Is this the right kind of file?")
    tests = {}
    for name, code in zip(names, codes, strict=True):
        plain = isinstance(name, str) and _PATH.fullmatch(name) and name.endswith(".py") and not name.startswith(".")
        if not plain or not isinstance(code, str):
            raise item.wrong("execution_result_content", f"{str(name)[:80]!r} is no test file's name", "Mend the row.")
        tests[f"{_R2E_TESTS}/{name}"] = code.encode("utf-8", "replace")
    said = item.table("expected_output_json")
    expected = tuple(re.sub(r"\x1b\[\d+m", "", test).partition(" - ")[0]
                     for test, how in said.items() if how == "PASSED")
    if not expected:
        raise item.wrong("expected_output_json", "expects no test to pass", "Leave the row out.")
    before = parsed.get("old_commit_hash", f"{commit}^")
    before = before if isinstance(before, str) and COMMIT.fullmatch(before.rstrip("^~1")) else f"{commit}^"
    return Case(
        item=item, family="r2e", name=f"{repo.replace('/', '__')}-{commit[:12]}", repo=repo, commit=before,
        fixed_by=commit, statement=item.text("problem_statement"), fail_to_pass=expected, pass_to_pass=(), tests=tests,
        facts=_facts(item, "docker_image"),
    )


def _tests(item: Item, field: str) -> tuple[str, ...]:
    """A list of names, or such a list as JSON."""
    value = item.values.get(field, [])
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise item.wrong(field, "neither a list nor one as JSON", "Mend the row.") from None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise item.wrong(field, "no list of names", "Mend the row.")
    if len(value) > MAX_TESTS:
        raise item.wrong(field, f"more than {MAX_TESTS} tests", "Leave the row out.")
    return tuple(dict.fromkeys(name for name in value if name.strip()))


def _patch(item: Item, field: str) -> bytes:
    text = item.text(field)
    if not text.strip():
        raise item.wrong(field, "empty", "Leave the row out.")
    return (text if text.endswith("\n") else text + "\n").encode("utf-8")


def _installed(item: Item) -> tuple[str, ...]:
    """The plain requirements of SWE-rebench's ``install_config``; what is an option or a link is left out."""
    value = item.values.get("install_config")
    packages = value.get("pip_packages") if isinstance(value, dict) else None
    named = [text.strip() for text in packages or () if isinstance(text, str)] if isinstance(packages, list) else []
    return tuple(text for text in named if plain_requirement(text)
                 and re.split(r"[^A-Za-z0-9._-]", text)[0].lower() not in _FOREIGN)


def _matching(item: Item, field: str, value: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(value) or ".." in value:
        raise item.wrong(field, f"{value[:80]!r} cannot be used", "Mend the row: names and ids are plain.")
    return value


def _facts(item: Item, *fields: str) -> dict[str, str]:
    return {name: value[:200] for name in fields if isinstance(value := item.values.get(name), str) and value}
