"""What is exported is read by the real ``datasets`` package, in an environment of its own, as it was written."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from exportkit import BROKEN, Emit, Talk, filled, rows_of, valid
from otherpython import python_with
from woodshed.services.exporting import Order, export
from woodshed.services.home import opened

READ = ("import json, sys; from datasets import load_dataset\n"
        "for folder in sys.argv[1:]:\n"
        "    print(json.dumps([dict(row) for row in load_dataset(folder, split='train')]))")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has ``datasets``. WOODSHED_TEST_DATASETS names one that is there already."""
    return python_with(tmp_path_factory.mktemp("datasets"), "datasets>=4.7,<6", variable="WOODSHED_TEST_DATASETS")


def long(emit: Emit) -> None:
    talk = Talk(emit, "do the work")
    talk.says("look", "ls", output="a b")
    talk.says("done ☃")


def short(emit: Emit) -> None:
    Talk(emit, "do the work").says("no")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["sft", "preference", "grpo", "calls"])
def test_a_hub_reads_what_was_written(form: Any, reader: Path, tmp_path: Path) -> None:
    """JSONL and Parquet give the same rows, with messages and tools as objects."""
    with opened(tmp_path / "home") as home:
        run = filled(home, [("t", valid(1.0), long), ("t", valid(0.0), short), ("t", BROKEN, short)])
        for files in ("jsonl", "parquet"):
            export(home, [run], Order(form, tmp_path / files, files=files))
    env = {**os.environ, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([reader, "-c", READ, tmp_path / "jsonl", tmp_path / "parquet"], env=env, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines, columns = (json.loads(line) for line in done.stdout.splitlines())
    assert lines == columns == rows_of(tmp_path / "jsonl")
