"""What a path of a Python repository is: a test, what tests need, source, documents, or configuration. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from posixpath import basename

TEST_FILES = ("test_*.py", "*_test.py")
"""What pytest collects where a project says nothing else."""
_TEST_FOLDERS = frozenset({"test", "tests"})
_DOC_FOLDERS = frozenset({"doc", "docs", "changelog.d", "changes.d", "newsfragments"})
_DOCS = re.compile(
    r"(readme|changes|changelog|history|news|authors|contributors|contributing|licen[cs]e|copying|notice|security|todo|"
    r"code_of_conduct|citation|thanks)(\..+)?",
    re.IGNORECASE,
)
_CONFIG = re.compile(
    r"pyproject\.toml|setup\.(cfg|py)|tox\.ini|noxfile\.py|pytest\.(ini|toml)|manifest\.in|makefile|justfile|"
    r"dockerfile.*|.*\.lock|pipfile|codecov\.yml|appveyor\.yml|mkdocs\.yml|requirements.*\.(txt|in)|package-lock\.json",
    re.IGNORECASE,
)


class Kind(StrEnum):
    """What a path is to mining."""

    TEST = "test"
    SUPPORT = "support"  # what tests stand on: conftest.py, data and helpers beside them
    SOURCE = "source"
    DOCS = "docs"
    CONFIG = "config"


def kind_of(path: str, patterns: Sequence[str] = TEST_FILES) -> Kind:
    """The kind of ``path`` (relative, with ``/``); ``patterns`` name the files that hold tests."""
    name, folders = basename(path), path.split("/")[:-1]
    if name == "conftest.py":
        return Kind.SUPPORT
    if name.endswith(".py") and any(fnmatchcase(name, pattern) for pattern in patterns):
        return Kind.TEST
    if any(folder in _TEST_FOLDERS for folder in folders):
        return Kind.SUPPORT
    if _CONFIG.fullmatch(name) or path.startswith(".") or "requirements" in folders[:1]:
        return Kind.CONFIG
    if any(folder in _DOC_FOLDERS for folder in folders[:1]) or _DOCS.fullmatch(name) or _is_prose(name):
        return Kind.DOCS
    return Kind.SOURCE


def _is_prose(name: str) -> bool:
    return name.endswith((".md", ".rst", ".adoc"))


def module_of(path: str) -> str:
    """The dotted name under which pytest reports the tests of a file: ``tests/test_a.py`` → ``tests.test_a``."""
    return path.removesuffix(".py").replace("/", ".")
