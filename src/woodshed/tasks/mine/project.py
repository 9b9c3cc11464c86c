"""What a Python project says of itself in its files: where its packages lie, what it needs, how its tests are run.

Everything is read, nothing is run; ``setup.py`` counts as far as its literals go. The files are those of one commit.
"""

from __future__ import annotations

import ast
import configparser
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from woodshed.tasks.mine.paths import TEST_FILES, Kind, kind_of
from woodshed.tasks.sdist import DISTRIBUTIONS, MARKS, pytest_options, top_imports

Read = Callable[[str], bytes | None]
"""The content of a file of the commit, None where there is none."""
_BASES = ("src", "lib", "python")
_REQUIREMENT_FILES = re.compile(r"(requirements/)?(requirements|dev|test|tests|testing|ci|base)?[-_.]?\w*\.(txt|in)")
_FIXTURES = {
    "mocker": "pytest-mock", "benchmark": "pytest-benchmark", "requests_mock": "requests-mock",
    "freezer": "pytest-freezer", "httpx_mock": "pytest-httpx", "respx_mock": "respx", "snapshot": "syrupy",
    "datadir": "pytest-datadir",
    "aiohttp_client": "pytest-aiohttp", "httpserver": "pytest-httpserver", "data_regression": "pytest-regressions",
}
"""Fixtures that tell of a plug-in."""
_OUR_OWN = frozenset({"pytest", "pip", "pluggy", "iniconfig", "packaging", "pygments"})
"""Stands in every sandbox in the version that reports are read of."""
_VERSION_FILE = '__version__ = version = "0.0.0"\n__version_tuple__ = version_tuple = (0, 0, 0)\n'
_METADATA = (b"importlib.metadata", b"importlib_metadata", b"pkg_resources")


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirement strings: ``declared`` by the project, ``guessed`` from what its tests import or use."""

    declared: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Project:
    """One commit's files, by their paths; contents are read when asked for."""

    paths: Sequence[str]
    read: Read
    pyproject: Mapping[str, Any] = field(default_factory=dict)
    bases: tuple[str, ...] = ("",)
    """Folders (``""`` is the top) from which the project's packages are imported, nearest first."""

    @classmethod
    def of(cls, paths: Iterable[str], read: Read) -> Project:
        """The project that these files make; a broken pyproject.toml counts as none."""
        try:
            table = tomllib.loads(_text(read("pyproject.toml")))
        except (tomllib.TOMLDecodeError, RecursionError):
            table = {}
        known = tuple(paths)
        return cls(known, read, table, (*_inner(known), ""))

    def options(self) -> dict[str, str]:
        """Lines of a pytest.ini: which tests there are, and how they are run. Warnings stay warnings."""
        options = pytest_options(lambda name: _text(self.read(name)) or None)
        return {name: value for name, value in options.items() if name != "filterwarnings"}

    def patterns(self) -> tuple[str, ...]:
        """Names of the files that hold tests: pytest's own, and what the project adds."""
        chosen = self.options().get("python_files", "").split()
        return tuple(dict.fromkeys((*TEST_FILES, *chosen)))

    def modules(self) -> frozenset[str]:
        """Top-level names that importing finds in the project itself, tests and their helpers included."""
        beside = [path for path in self.paths if path.endswith(".py") and kind_of(path) in (Kind.TEST, Kind.SUPPORT)]
        names = {self._top(path) for path in self.paths if path.endswith(".py")}
        names |= {path.rpartition("/")[2].removesuffix(".py") for path in beside}
        names |= {path.rpartition("/")[0].rpartition("/")[2] for path in beside}
        return frozenset(names - {""})

    def packages(self) -> frozenset[str]:
        """Top-level names of the project's source, without its tests."""
        return frozenset(self._top(path) for path in self.paths
                         if path.endswith(".py") and kind_of(path) is Kind.SOURCE)

    def _top(self, path: str) -> str:
        base = next(base for base in self.bases if not base or path.startswith(base + "/"))
        return path[len(base) + 1 if base else 0 :].partition("/")[0].removesuffix(".py")

    def name(self) -> str:
        """The distribution's name, or the empty string."""
        found = _table(self.pyproject, "project").get("name") or _table(self.pyproject, "tool", "poetry").get("name")
        found = found or self._setup_cfg().get("metadata", "name", fallback="") or self._setup_py().get("name")
        return found if isinstance(found, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", found) else ""

    def generated(self) -> dict[str, bytes]:
        """Files that a build makes and the source asks for: a version module, metadata of an installed package."""
        files: dict[str, bytes] = {}
        scm = _table(self.pyproject, "tool", "setuptools_scm")
        vcs = _table(self.pyproject, "tool", "hatch", "build", "hooks", "vcs")
        for path in (scm.get("write_to"), scm.get("version_file"), vcs.get("version-file")):
            if isinstance(path, str) and re.fullmatch(r"[\w/.-]+\.py", path) and not path.startswith(("/", ".")) and \
                    ".." not in path.split("/") and path not in self.paths:
                files[path] = _VERSION_FILE.encode()
        if (name := self.name()) and self._asks_for_metadata():
            version = _table(self.pyproject, "project").get("version")
            version = version if isinstance(version, str) and re.fullmatch(r"[\w.+!-]{1,60}", version) else "0.0.0"
            folder = f"{self.bases[0]}/{name.replace('-', '_')}-{version}.dist-info".lstrip("/")
            files[f"{folder}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
        return files

    def needs(self, tests: Mapping[str, bytes]) -> Needs:
        """What must be installed for ``tests`` (Python files by path) to run, beside the workspace."""
        runtime, pool = dict(self._runtime()), dict(self._pool())
        options, own = self.options(), self.modules()
        wanted = {DISTRIBUTIONS.get(name, name) for content in tests.values() for name in top_imports(content)
                  if name not in own}
        used = {plugin for mark, plugin in MARKS.items() if any(mark.encode() in text for text in tests.values())}
        used |= {plugin for fixture, plugin in _FIXTURES.items()
                 if any(re.search(rb"def \w+\([^)]*\b%s\b" % fixture.encode(), text) for text in tests.values())}
        used |= {"pytest-asyncio"} if "asyncio_mode" in options else set()
        declared = {key: text for key, text in runtime.items() if self._foreign(key)}
        guessed = {}
        for name in sorted(wanted | used):
            key = str(canonicalize_name(name))
            if key in declared or not self._foreign(key) or name in _stdlib():
                continue
            if key in pool:
                declared[key] = pool[key]
            else:
                guessed[key] = name
        return Needs(tuple(declared[key] for key in sorted(declared)), tuple(guessed[key] for key in sorted(guessed)))

    def setup(self, key: str) -> Any:
        """What setup.cfg or setup.py says under this name of the distribution; None where neither does."""
        return self._setup_cfg().get("metadata", key, fallback=None) or self._setup_py().get(key)

    def _foreign(self, key: str) -> bool:
        return key not in _OUR_OWN and key != canonicalize_name(self.name() or "-")

    def _runtime(self) -> Iterator[tuple[str, str]]:
        """What the project requires to run, by canonical name."""
        yield from _requirements(_strings(_table(self.pyproject, "project").get("dependencies")))
        yield from _poetry(_table(self.pyproject, "tool", "poetry", "dependencies"))
        yield from _requirements(self._setup_cfg().get("options", "install_requires", fallback="").splitlines())
        yield from _requirements(_strings(self._setup_py().get("install_requires")))
        if not self.name():
            yield from _requirements(_text(self.read("requirements.txt")).splitlines())

    def _pool(self) -> Iterator[tuple[str, str]]:
        """Everything else the project names with versions: extras, groups, requirement files."""
        project, groups = _table(self.pyproject, "project"), _table(self.pyproject, "dependency-groups")
        for table in (_table(project, "optional-dependencies"), groups):
            for value in table.values():
                yield from _requirements(_strings(value))
        for group in _table(self.pyproject, "tool", "poetry", "group").values():
            yield from _poetry(_table(group, "dependencies") if isinstance(group, Mapping) else {})
        yield from _poetry(_table(self.pyproject, "tool", "poetry", "dev-dependencies"))
        config = self._setup_cfg()
        yield from _requirements(config.get("options", "tests_require", fallback="").splitlines())
        for section in ("options.extras_require",):
            for value in dict(config[section]).values() if config.has_section(section) else ():
                yield from _requirements(value.splitlines())
        yield from _requirements(_strings(self._setup_py().get("tests_require")))
        extras = self._setup_py().get("extras_require")
        for value in extras.values() if isinstance(extras, dict) else ():
            yield from _requirements(_strings(value))
        for path in self.paths:
            if _REQUIREMENT_FILES.fullmatch(path):
                yield from _requirements(_text(self.read(path)).splitlines())

    def _setup_cfg(self) -> configparser.ConfigParser:
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            parser.read_string(_text(self.read("setup.cfg")))
        except configparser.Error:
            return configparser.ConfigParser(interpolation=None)
        return parser

    def _setup_py(self) -> dict[str, Any]:
        """The keywords of ``setup(…)`` that are literals, or names of module-level literals."""
        try:
            tree = ast.parse(self.read("setup.py") or b"")
            names = {target.id: node.value for node in tree.body if isinstance(node, ast.Assign)
                     for target in node.targets if isinstance(target, ast.Name)}
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)
                     and getattr(node.func, "id", getattr(node.func, "attr", "")) == "setup"]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return {}
        found: dict[str, Any] = {}
        for keyword in (keyword for call in calls for keyword in call.keywords if keyword.arg):
            value = names.get(keyword.value.id, keyword.value) if isinstance(keyword.value, ast.Name) else keyword.value
            try:
                found[str(keyword.arg)] = ast.literal_eval(value)
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                continue
        return found

    def _asks_for_metadata(self) -> bool:
        return any(any(word in (self.read(path) or b"") for word in _METADATA) for path in self.paths
                   if path.endswith(".py") and kind_of(path) is Kind.SOURCE)


def _inner(paths: Sequence[str]) -> list[str]:
    known = set(paths)
    return [base for base in _BASES if f"{base}/__init__.py" not in known
            and any(path.startswith(f"{base}/") and path.endswith(".py") for path in paths)]


def _requirements(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Plain requirements by canonical name; options, links, and what holds for an extra alone are left out."""
    for line in lines:
        text = line.partition(" #")[0].strip()
        if not text or text.startswith(("#", "-")):
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.url is None and "extra" not in str(requirement.marker or ""):
            yield str(canonicalize_name(requirement.name)), str(requirement)


def _poetry(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Poetry's own notation, caret and tilde ranges as they are meant."""
    for name, value in table.items():
        version = value.get("version") if isinstance(value, Mapping) else value
        optional = isinstance(value, Mapping) and (value.get("optional") or not version)
        if name != "python" and isinstance(version, str) and not optional:
            yield from _requirements([f"{name}{_range(version)}"])


def _range(version: str) -> str:
    parts = []
    for piece in version.split(","):
        match = re.fullmatch(r"\s*([\^~]?)\s*(\d+(?:\.\d+)*)\s*", piece)
        if match is None:
            parts.append(piece.strip().replace("*", "") if piece.strip() != "*" else "")
            continue
        numbers = [int(number) for number in match[2].split(".")]
        if not match[1]:
            parts.append(f"=={match[2]}")
            continue
        index = next((at for at, number in enumerate(numbers) if number), len(numbers) - 1) if match[1] == "^" else \
            min(1, len(numbers) - 1)
        bound = [*numbers[:index], numbers[index] + 1]
        parts.append(f">={match[2]},<{'.'.join(map(str, bound))}")
    return ",".join(part for part in parts if part)


def _table(value: Any, *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.splitlines()
    return [text for text in value if isinstance(text, str)] if isinstance(value, list | tuple) else []


def _text(content: bytes | None) -> str:
    return (content or b"").decode("utf-8", "replace")


def _stdlib() -> frozenset[str]:
    import sys

    return frozenset(sys.stdlib_module_names)
