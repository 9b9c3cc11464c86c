"""The pages of what was simulated and foretold hold the figures of their files, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that writes a page's figures."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def block(page: str, source: str) -> str:
    """What stands between the marks."""
    found = re.search(rf"<!-- figures {re.escape(source)} -->\n(.*?)<!-- end -->", (ROOT / "docs" / page).read_text(),
                      re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(("name", "page", "source"), [("run_capacity", "capacity.md", "capacity.json"),
                                                      ("run_plan", "benchmarks.md", "plan.json")])
def test_the_tables_are_those_of_the_results_file(
    name: str, page: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word for word what the script writes of the file; a page says so where nothing was published yet."""
    module = script(name, monkeypatch)
    if (RESULTS / source).exists():
        assert block(page, source) == "\n".join(module.lines(json.loads((RESULTS / source).read_text())))
    else:
        assert block(page, source).strip() == "Not published yet."


def test_what_the_page_says_of_capacity_is_in_the_file() -> None:
    """Every row that the text names is one, and every figure beside a row's key in it is that row's."""
    text = (ROOT / "docs" / "capacity.md").read_text()
    rows = json.loads((RESULTS / "capacity.json").read_text())["rows"]
    told = re.findall(r"(\d[\d.,]*)[^<\n]{0,20}<!-- capacity\.json ([^>]+?) / (\w+) -->", text)
    assert told
    for shown, row, key in told:
        value = rows[row][key]
        digits = len(shown.rstrip(".,").partition(".")[2])
        assert shown.rstrip(".,").replace(",", "") == f"{value:.{digits}f}", (row, key, value)


@pytest.mark.slow
def test_the_simulation_repeats_to_the_last_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base row, simulated again here, is the published one."""
    module = script("run_capacity", monkeypatch)
    found = json.loads((RESULTS / "capacity.json").read_text())
    made = module.one_round(module.Inputs(), found["seed"])
    assert round(made.makespan_s, 3) == found["samples"][module.BASE][0]
