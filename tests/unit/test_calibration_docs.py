"""The page on calibration tells what is measured and what is checked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from woodshed.model import CheckSpec, Label
from woodshed.model.calibration import STRONG

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "calibration.md").read_text()
FIGURES = re.findall(r"^(.*)<!-- (calibration-[\w-]+\.json) ([\w.]+) -->", PAGE, re.MULTILINE)


def test_every_label_is_explained() -> None:
    """The table has each label once, and the threshold is the one in force."""
    for label in Label:
        assert PAGE.count(f"| `{label}` |") == 1
    assert f"strength is below {STRONG}" in PAGE


def test_the_defaults_are_those_of_the_check() -> None:
    """How often what is tried stands on the page as the check does it."""
    spec = CheckSpec()
    for told in (f"{spec.nops} (`--nops`)", f"{spec.references} (`--repeats`)", f"up to {spec.doubtful} (`--doubtful`)",
                 f"up to {spec.variants} (`--variants`"):
        assert told in PAGE


@pytest.mark.parametrize(("line", "file", "key"), FIGURES)
def test_every_figure_was_measured(line: str, file: str, key: str) -> None:
    """A figure on the page is the one in the result file that its line names."""
    value: object = json.loads((ROOT / "benchmarks" / "results" / file).read_text())
    for part in key.split("."):
        assert isinstance(value, dict)
        value = value[part]
    assert isinstance(value, int | float)
    told = [float(text) for text in re.findall(r"\d+(?:\.\d+)?", line)]
    assert round(float(value), 2) in told or value in told
