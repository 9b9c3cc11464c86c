"""What an agent's changes may not decide: the paths that steer a verification. Pure.

Every captured change is given a :class:`Touch`, or None where it is ordinary work. Docs: ``docs/verification.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from posixpath import normpath

from woodshed.model import Change, ChangeKind, Task
from woodshed.verify.patterns import Patterns, compiled, lookalike, normal


class Touch(StrEnum):
    """What a change lays hands on. All but NOTED are kept out of the verifier's sandbox."""

    CONTROL = "control"  # steers the test runner or the interpreter; the report; the reward
    TEST = "test"  # a test of the start, or a path the task protects
    CACHE = "cache"  # compiled or cached by a tool: never needed, able to carry code
    OUTSIDE = "outside"  # not below a capture root
    NOTED = "noted"  # kept, and said: settings of a build that tests may depend on
    MERGED = "merged"  # kept, with the tables that steer tests set back (see merge.py)


# What pytest, coverage, tox, Python's start-up, Node's test runners, git and shells read unasked, from any folder.
CONTROL = compiled((
    "conftest.py", "conftest.pyc", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "setup.cfg",
    "tox.ini", "tox.toml", ".coveragerc", "noxfile.py", "sitecustomize.*", "usercustomize.*", "sitecustomize/",
    "usercustomize/", "*.pth", "*.egg-link", "__editable__*", "pyvenv.cfg", "**/.git/hooks/",
    "jest.config.*", "vitest.config.*", "vitest.workspace.*", ".mocharc*", ".taprc", ".nycrc*", ".c8rc*",
    "ava.config.*", "karma.conf.*", "playwright.config.*", ".npmrc", "**/node_modules/.bin/",
    *(f"**/node_modules/{tool}/" for tool in ("jest*", "mocha", "vitest", "ava", "tap", "chai", "tsx", "ts-node")),
    ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".zshenv",
))
HARMLESS = compiled(("**/.git/hooks/*.sample",))  # git init writes them; git never runs them
TEST = compiled(("/tests/**", "/test/**"))
START_TEST = compiled((  # tests by their names: protected where the start has them; new ones are the agent's own
    "test_*.py", "*_test.py", "tests/", "test/", "__tests__/", "*.test.[cmjt][jst]*", "*.spec.[cmjt][jst]*",
    "*.test.js", "*.test.ts", "*.spec.js", "*.spec.ts",
))
CACHE = compiled(("__pycache__/", ".pytest_cache/", ".mypy_cache/", ".ruff_cache/", ".hypothesis/"))
NOTED = compiled(("tsconfig*.json", "vite.config.*", "Makefile", "GNUmakefile"))
MERGED = compiled(("pyproject.toml", "package.json", "**/*.dist-info/entry_points.txt",
                   "**/*.egg-info/entry_points.txt"))

LOCKED = ("/tests", "/solution", "/logs/verifier", "/opt/venv")  # ours: no task can hand them to the agent
SYSTEM = ("/usr", "/etc", "/bin", "/lib", "/lib64", "/sbin", "/proc", "/sys", "/dev", "/boot", "/run")

# Importable names that the interpreter or the test tools load themselves: a module of this name at an import root
# would be loaded in their place (python -m puts the current folder first).
TOOLS = frozenset((
    "pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli", "coverage",
    "hypothesis", "attr", "attrs", "junitparser", "pytest_asyncio", "pytest_cov", "pytest_timeout", "pytest_mock",
    "xdist", "pytest_xdist", "execnet", "pytest_json_ctrf", "anyio", "colorama", "setuptools", "pkg_resources",
    "typing_extensions", "_distutils_hack",
))
SHADOWS = (sys.stdlib_module_names | TOOLS) - {"this", "antigravity", "__main__"}
_MODULE = (".py", ".pyc", ".so")


def beneath(path: str, folder: str) -> bool:
    """True for ``folder`` itself and all below it. Both absolute and normalised."""
    return path == folder or path.startswith("/" if folder == "/" else folder + "/")


@dataclass(frozen=True, slots=True)
class Rules:
    """What one task protects. ``existed`` says whether a path stood at the start; ``roots`` are import roots.

    ``declared`` is False where the task names no capture, so that whatever was captured beside the workdir is no news.
    """

    workdir: str
    capture: tuple[str, ...]
    task: Patterns = field(default_factory=Patterns)
    roots: tuple[str, ...] = ()
    existed: Callable[[str], bool] = lambda path: False
    declared: bool = True

    @classmethod
    def of(cls, task: Task, existed: Callable[[str], bool]) -> Rules:
        """The rules of ``task``: its patterns, its capture roots (default: the workdir), its PYTHONPATH."""
        workdir = normpath(task.judged_in.workdir)
        paths = (task.judged_in.env.get("PYTHONPATH", ""), task.verifier.env.get("PYTHONPATH", ""))
        declared = [entry for value in paths for entry in value.split(":") if entry.startswith("/")]
        roots = dict.fromkeys(normpath(root) for root in (workdir, f"{workdir}/src", f"{workdir}/lib", *declared))
        capture = tuple(normpath(root) for root in task.verifier.capture) or (workdir,)
        return cls(workdir, capture, Patterns.of(task.verifier.protected), tuple(roots), existed,
                   bool(task.verifier.capture))

    def classify(self, change: Change) -> Touch | None:
        """What ``change`` touches. Folders as such are never a touch of tests or controls: their contents are."""
        raw = normpath(change.path)
        path = normal(raw)
        if not any(beneath(path, root) for root in self.capture):
            return Touch.OUTSIDE
        if any(beneath(path, place) for place in LOCKED) or self._system(path):
            return Touch.CONTROL
        relative = path[len(self.workdir.rstrip("/")) + 1 :] if beneath(path, self.workdir) else path[1:]
        if path == self.workdir and change.kind not in (ChangeKind.DIRECTORY, ChangeKind.OPAQUE):
            return Touch.CONTROL  # a link in the place of the workdir would lead everything elsewhere
        if CACHE.fullmatch(relative):
            return Touch.CACHE
        if change.kind in (ChangeKind.DIRECTORY, ChangeKind.OPAQUE):
            return None
        decided = self.task.decide(relative) if beneath(path, self.workdir) else None
        if decided is not None:
            return Touch.TEST if decided else None
        return self._built_in(raw, path, relative, change.kind)

    def _built_in(self, raw: str, path: str, relative: str, kind: ChangeKind) -> Touch | None:
        if self._shadows(path, kind) or (CONTROL.fullmatch(relative) and not HARMLESS.fullmatch(relative)):
            return Touch.CONTROL
        if beneath(path, self.workdir) and TEST.fullmatch(relative):
            return Touch.TEST
        if START_TEST.fullmatch(relative) and self.existed(raw):
            return Touch.TEST
        if MERGED.fullmatch(relative):
            if kind is ChangeKind.FILE:
                return Touch.MERGED
            return Touch.CONTROL if kind is ChangeKind.SYMLINK or "/" not in relative else None
        return Touch.NOTED if NOTED.fullmatch(relative) else None

    def _system(self, path: str) -> bool:
        """True in the system's folders, unless the task captures that very part of them (an artifact in /etc)."""
        return any(beneath(path, place) and not any(root != place and beneath(root, place) and beneath(path, root)
                                                    for root in self.capture) for place in SYSTEM)

    def _shadows(self, path: str, kind: ChangeKind) -> bool:
        for root in self.roots:
            if not beneath(path, root) or path == root:
                continue
            top = root.rstrip("/")
            name, _, rest = path[len(top) + 1 :].partition("/")
            stem = name.split(".", 1)[0]
            if stem not in SHADOWS or self.existed(f"{top}/{name}"):
                continue
            package = stem == name and rest.startswith("__init__.") and rest.endswith(_MODULE)
            module = not rest and name.endswith(_MODULE)
            link = not rest and stem == name and kind is ChangeKind.SYMLINK
            if package or module or link:
                return True
        return False

    def mimics(self, change: Change) -> bool:
        """True for an ordinary path that only looks like a protected one: another case, or compatibility letters."""
        folded = lookalike(change.path)
        if folded == normal(change.path):
            return False
        twin = change.model_copy(update={"path": folded})
        return self.classify(twin) in (Touch.CONTROL, Touch.TEST, Touch.MERGED)


def touches_flags(touched: Sequence[tuple[str, Touch]]) -> tuple[str, ...]:
    """The flags that ``touched`` paths put on a verdict, each once."""
    kinds = {touch for _, touch in touched}
    names = {Touch.CONTROL: "tamper:protected_path", Touch.TEST: "weakens_tests", Touch.OUTSIDE: "outside_capture"}
    return tuple(flag for touch, flag in names.items() if touch in kinds)
