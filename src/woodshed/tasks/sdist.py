"""What a source distribution holds: its package, its tests, its notes and what it requires. Read, never run."""

from __future__ import annotations

import ast
import configparser
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from email.parser import Parser
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from woodshed.errors import UsageError

MAX_BYTES = 200_000_000
MAX_NOTES = 8_000
_BASES = ("src", "lib", "")
_TESTS = ("tests", "test", "testing")
_LEFT_OUT = (".egg-info", ".dist-info", ".git", ".hg", ".svn", "__pycache__", ".github")
_NOTES = re.compile(r"(changes|changelog|history|news|versions|release.?notes)(\.(md|rst|txt))?", re.IGNORECASE)
_HEADING = re.compile(r"\W*(?:version|release|v)?\s*(\d+\.\d+(?:\.\w+)*)\b", re.IGNORECASE)
_OPTIONS = ("python_files", "python_classes", "python_functions", "asyncio_mode", "filterwarnings", "markers",
            "usefixtures")
MARKS = {"pytest.mark.asyncio": "pytest-asyncio", "pytest.mark.anyio": "anyio", "pytest.mark.trio": "pytest-trio"}
DISTRIBUTIONS = {
    "attr": "attrs", "bs4": "beautifulsoup4", "dateutil": "python-dateutil", "git": "GitPython", "PIL": "Pillow",
    "pkg_resources": "setuptools", "sklearn": "scikit-learn", "yaml": "PyYAML",
}
"""Distributions whose import name is another; every other import is asked for by its own name."""
_ALWAYS = frozenset({"pytest", "_pytest"})


class Sdist:
    """An unpacked source distribution of ``name`` ``version``. ``root`` is its top folder."""

    def __init__(self, root: Path, name: str, version: str) -> None:
        self.root, self.name, self.version = root, name, version
        self.base, self.entry = self._package()
        self.tests = self._tests()

    def wrong(self, message: str, remedy: str) -> UsageError:
        """The error that names this release."""
        return UsageError(message, file=f"{self.name} {self.version}", remedy=remedy)

    def _package(self) -> tuple[str, str]:
        """(folder that goes on the path, package folder or module file in it)."""
        names = [canonicalize_name(self.name), *self._top_level()]
        for wanted in names:
            for base in _BASES:
                for path in self._entries(self.root / base):
                    package = path.is_dir() and (path / "__init__.py").is_file()
                    stem = path.name if package else path.stem if path.suffix == ".py" else ""
                    if stem and canonicalize_name(stem) == canonicalize_name(wanted):
                        return base, path.name
        raise self.wrong(f"no package or module {names[0]!r} in the source distribution",
                         "Only packages of plain Python files can be imported.")

    def _top_level(self) -> list[str]:
        listed = sorted(self.root.glob("**/*.egg-info/top_level.txt"))[:1]
        names = listed[0].read_text("utf-8", errors="replace").split() if listed else []
        return [name for name in names if name not in _TESTS][:20]

    def _entries(self, folder: Path) -> list[Path]:
        return sorted(path for path in folder.iterdir() if not path.is_symlink()) if folder.is_dir() else []

    def _tests(self) -> Path | None:
        """The folder of tests (the root when they lie there), None when the release ships none."""
        package = self.root / self.base / self.entry
        for parent in (self.root, package, self.root / self.base):
            for name in _TESTS:
                if any(_plain(parent / name, "*.py")):
                    return parent / name
        return self.root if any(self.root.glob("test_*.py")) else None

    def start(self) -> dict[str, bytes]:
        """The files an agent starts from: everything but tests, build metadata and version control."""
        return dict(self._files(self.root, tests=False))

    def source(self) -> dict[str, bytes]:
        """The package's own files, without tests."""
        prefix = f"{self.base}/" if self.base else ""
        wanted = f"{prefix}{self.entry}"
        return {path: content for path, content in self.start().items()
                if path == wanted or path.startswith(wanted + "/")}

    def hidden(self) -> dict[str, bytes]:
        """The tests with their data, by path below /tests. Raises UsageError when there are none."""
        if self.tests is None:
            raise self.wrong("ships no tests", "Choose releases whose source distributions hold their tests.")
        if self.tests == self.root:
            return {path.name: path.read_bytes() for path in self.root.glob("*.py")
                    if path.name == "conftest.py" or path.name.startswith("test_")}
        files = dict(self._files(self.tests, tests=True))
        if not self._imports_itself(files):
            files.pop("__init__.py", None)  # it would make the folder's parent, "/", the root of imports
        conftest = self.root / "conftest.py"
        if "conftest.py" not in files and conftest.is_file() and not conftest.is_symlink():
            files["conftest.py"] = conftest.read_bytes()
        return files

    def _imports_itself(self, files: Mapping[str, bytes]) -> bool:
        names = "|".join(_TESTS)
        own = re.compile(rf"^\s*(from\s+\.|from\s+({names})\b|import\s+({names})\b)", re.MULTILINE)
        return any(own.search(content.decode("utf-8", "replace")) for path, content in files.items()
                   if path.endswith(".py"))

    def _files(self, top: Path, *, tests: bool) -> Iterator[tuple[str, bytes]]:
        size, pending = 0, [top]
        while pending:
            for path in self._entries(pending.pop()):
                name = str(path.relative_to(top))
                if path.name.endswith(_LEFT_OUT) or (not tests and self._leaks(path)):
                    continue
                if path.is_dir():
                    pending.append(path)
                elif path.is_file():
                    size += path.stat().st_size
                    if size > MAX_BYTES:
                        raise self.wrong(f"larger than {MAX_BYTES} bytes", "Choose a smaller package.")
                    yield self._utf8(name), path.read_bytes()

    def _utf8(self, name: str) -> str:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise self.wrong(f"a file whose name is no UTF-8: {name!r}", "Choose another package.") from None
        return name

    def _leaks(self, path: Path) -> bool:
        """True for tests, and for what only a built release has."""
        if path == self.tests or (path.parent == self.root and path.name in ("PKG-INFO", *_TESTS)):
            return True
        return path.parent == self.root and path.suffix == ".py" and path.name.startswith(("test_", "conftest"))

    def metadata(self) -> dict[str, list[str]]:
        """The fields of PKG-INFO, lower case, each a list; empty when there is none."""
        file = self.root / "PKG-INFO"
        if not file.is_file() or file.is_symlink():
            return {}
        message = Parser().parsestr(file.read_bytes().decode("utf-8", "replace"), headersonly=True)
        fields: dict[str, list[str]] = {}
        for key, value in message.items():
            fields.setdefault(key.lower(), []).append(str(value))
        return fields

    def licence(self) -> str:
        """What its metadata calls its licence, one line."""
        facts = self.metadata()
        classified = [name.rpartition(":: ")[2] for name in facts.get("classifier", [])
                      if name.startswith("License ::")]
        named = [*facts.get("license-expression", []), *classified, *facts.get("license", [])]
        return next((name.strip().splitlines()[0][:200] for name in named if name.strip()), "see the package")

    def dist_info(self) -> dict[str, bytes]:
        """An installed package's metadata, so that ``importlib.metadata`` finds the version in the source tree."""
        folder = f"{self.name.replace('-', '_')}-{self.version}.dist-info"
        text = f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n"
        return {f"{self.base}/{folder}/METADATA".lstrip("/"): text.encode()}

    def notes(self) -> str:
        """What the release's own change log says of it; empty where it has none."""
        for folder in (self.root, self.root / "docs", self.root / "doc"):
            for path in self._entries(folder):
                if path.is_file() and _NOTES.fullmatch(path.name):
                    text = path.read_bytes()[:2_000_000].decode("utf-8", "replace")
                    if section := _section(text, self.version):
                        return section
        return ""

    def pytest_options(self) -> dict[str, str]:
        """What the project's own pytest configuration says about which tests there are."""
        return pytest_options(self._text)

    def _text(self, name: str) -> str | None:
        file = self.root / name
        return file.read_bytes().decode("utf-8", "replace") if file.is_file() and not file.is_symlink() else None

    def requirements(self) -> list[str]:
        """What the package requires by its metadata, and what its tests import beside."""
        found: dict[str, str] = {}
        for text in self.metadata().get("requires-dist", []):
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if requirement.url is None and "extra" not in str(requirement.marker or ""):
                found[canonicalize_name(requirement.name)] = str(requirement)
        for name in self._imported():
            found.setdefault(canonicalize_name(name), name)
        return [found[name] for name in sorted(found)]

    def _imported(self) -> set[str]:
        """Distributions the tests cannot do without: imported at the top of a module, outside ``try``."""
        files = self.hidden()
        own = {path.partition("/")[0].removesuffix(".py") for path in files} | {Path(self.entry).stem, *_TESTS}
        names: set[str] = set()
        for path, content in files.items():
            if path.endswith(".py"):
                names |= top_imports(content)
        plugins = {plugin for mark, plugin in MARKS.items()
                   if any(mark.encode() in content for content in files.values())}
        if "asyncio_mode" in self.pytest_options():
            plugins.add("pytest-asyncio")
        foreign = names - own - _ALWAYS - set(sys.stdlib_module_names)
        return {DISTRIBUTIONS.get(name, name) for name in foreign} | plugins


def _plain(folder: Path, pattern: str) -> Iterator[Path]:
    return folder.glob(pattern) if folder.is_dir() and not folder.is_symlink() else iter(())


def pytest_options(read: Callable[[str], str | None]) -> dict[str, str]:
    """What a project's pytest configuration says about which tests there are, as lines of a pytest.ini.

    ``read`` gives the text of a file at the project's top, None where there is none.
    """
    found = _configured(read)
    options = {}
    for name in _OPTIONS:
        value = found.get(name)
        lines = value if isinstance(value, list) else str(value or "").strip().splitlines()
        if lines and all(isinstance(line, str) for line in lines):
            # An item may hold line ends itself: indented, each of its lines stays a part of this value.
            parts = [part.strip() for line in lines for part in line.splitlines()]
            options[name] = "".join(f"\n    {part}" for part in parts if part)
    return options


def _configured(read: Callable[[str], str | None]) -> Mapping[str, Any]:
    try:
        options = tomllib.loads(read("pyproject.toml") or "").get("tool", {})["pytest"]["ini_options"]
        return options if isinstance(options, dict) else {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    for name, section in (("pytest.ini", "pytest"), ("tox.ini", "pytest"), ("setup.cfg", "tool:pytest")):
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read_string(read(name) or "")
        except (configparser.Error, ValueError):
            continue
        if parser.has_section(section):
            return dict(parser[section])
    return {}


def top_imports(content: bytes) -> set[str]:
    """Names that a module imports at its top, outside ``try``; none where it does not parse."""
    try:
        body = ast.parse(content).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _section(text: str, version: str) -> str:
    """The part of a change log below the heading of ``version``, up to the next version's heading."""
    taken: list[str] | None = None
    for line in text.splitlines():
        match = _HEADING.match(line) if len(line) < 100 else None
        if taken is None:
            taken = [] if match is not None and match[1] == version else None
        elif match is not None and match[1] != version and not line.startswith((" ", "\t")):
            break
        else:
            taken.append(line)
    lines = [line for line in taken or [] if not line.strip() or line.strip(" -=~^*#_")]
    return "\n".join(lines).strip()[:MAX_NOTES]
