"""The folders are the architecture: this file enforces it by reading every import, lazy ones included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import woodshed

SOURCE = Path(woodshed.__file__).parent
LAYERS = {
    "errors": 0, "version": 0, "settings": 0, "model": 0,
    "interfaces": 1, "pypi": 1, "dockerfile": 1, "given": 1,
    "attempt": 2, "sandbox": 2, "tasks": 2, "verify": 2, "harness": 2, "gateway": 2, "measure": 2, "store": 2,
    "engine": 3, "trainers": 3,
    "services": 4, "plugins": 4,
    "api": 5, "web": 5,
    "cli": 6, "__main__": 7,
}  # fmt: skip
LEAST_PRIVATE = {"woodshed"}
"""The package itself: its ``__init__`` re-exports the public names and may import anything."""
THIRD_PARTY_HOMES = {
    "aiohttp": {"gateway", "sandbox"},
    "alembic": {"store"},
    "cronsim": {"engine"},
    "cryptography": {"sandbox"},
    "dbos": {"engine"},
    "fastapi": {"api"},
    "gguf": {"gateway", "trainers"},
    "pyarrow": {"tasks", "trainers"},
    "rich": {"cli"},
    "sqlalchemy": {"store", "engine"},
    "starlette": {"api"},
    "typer": {"cli"},
    "unidiff": {"harness"},
    "uvicorn": {"api"},
    "xllamacpp": {"gateway"},
    "zstandard": {"sandbox"},
}
"""Heavy packages load inside their own adapter only."""


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def part_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Absolute dotted names imported anywhere in a file, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            yield module, node.lineno
            if module == "woodshed":
                for alias in node.names:
                    yield f"woodshed.{alias.name}", node.lineno


def own(path: Path) -> Iterator[tuple[str, int]]:
    for name, line in imports(path):
        if name.startswith("woodshed."):
            yield name.split(".")[1], line


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    """A module imports only lower layers and its own folder; siblings of one layer meet in attempt/ alone."""
    part = part_of(path)
    for other, line in own(path):
        if other == part:
            continue
        assert other in LAYERS, f"{path}:{line}: woodshed.{other} has no layer"
        same_floor = part in {"attempt"} or (LAYERS[part] == 4 and other == "plugins") or LAYERS[part] == 0
        limit = LAYERS[part] if same_floor else LAYERS[part] - 1
        assert LAYERS[other] <= limit, f"{path}:{line}: {part} imports {other}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_heavy_packages_stay_in_their_adapters(path: Path) -> None:
    """A heavy third-party package is imported only by the folder that adapts it."""
    for name, line in imports(path):
        homes = THIRD_PARTY_HOMES.get(name.split(".")[0])
        assert homes is None or part_of(path) in homes, f"{path}:{line}: {name} outside {homes}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_stay_short(path: Path) -> None:
    """No source file is longer than 500 lines."""
    assert len(path.read_text().splitlines()) <= 500


def test_there_are_no_import_cycles() -> None:
    """The graph of modules, lazy imports included, has no cycle."""
    names = {".".join(("woodshed", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in modules()}
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    graph = {
        name: {_closest(target, names) for target, _ in _targets(path)} - {name, ""} for name, path in names.items()
    }
    state: dict[str, int] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if state.get(name) == 2:
            return
        assert state.get(name) != 1, " -> ".join((*trail[trail.index(name):], name))
        state[name] = 1
        for target in graph[name]:
            visit(target, (*trail, name))
        state[name] = 2

    for name in graph:
        visit(name, ())


def _targets(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("woodshed"):
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno


def _closest(target: str, names: dict[str, Path]) -> str:
    while target and target not in names:
        target = target.rpartition(".")[0]
    return target


def test_ninety_five_of_a_hundred_functions_fit_forty_lines() -> None:
    """The 95th-percentile function is at most 40 lines long."""
    sizes = sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert sizes[int(len(sizes) * 0.95)] <= 40


def _used_after(path: Path) -> list[str]:
    """Places where what ``with opened() as home`` gave is used below the ``with``, in the same function."""
    found = list[str]()
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        ends = {item.optional_vars.id: block.end_lineno or 0 for block in ast.walk(function)
                if isinstance(block, ast.With) for item in block.items
                if isinstance(item.optional_vars, ast.Name) and isinstance(item.context_expr, ast.Call)
                and getattr(item.context_expr.func, "id", "") == "opened"}
        found += [f"{path}:{name.lineno}: {name.id}" for name in ast.walk(function)
                  if isinstance(name, ast.Name) and name.lineno > ends.get(name.id, 1 << 30)]
    return found


def test_no_home_is_used_once_it_is_closed(tmp_path: Path) -> None:
    """A store that was closed would connect anew, and nobody would end that; the check finds one where there is one."""
    assert [place for path in modules() for place in _used_after(path)] == []
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    with opened() as home:\n        a(home)\n    b(home)\n")
    assert _used_after(bad) == [f"{bad}:4: home"]
