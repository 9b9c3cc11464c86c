"""``woodshed export`` by the real command line: a data set, its card, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

from exportkit import BROKEN, Emit, Talk, filled, valid
from kit import woodshed
from woodshed.services.home import opened


def test_a_data_set_is_written_and_told(tmp_path: Path) -> None:
    """The object names the files and holds the card; a wrong format ends with 2 and the known ones."""
    def story(emit: Emit) -> None:
        Talk(emit, "do it").says("done")

    with opened(tmp_path / "home") as home:
        filled(home, [("t", valid(1.0), story), ("t", BROKEN, story)])
    done = woodshed("export", "last", "--format", "grpo", "--out", tmp_path / "out", "--json", home=tmp_path / "home")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [Path(file).name for file in told["files"]] == ["train-00000.jsonl", "card.json", "README.md"]
    assert (told["card"]["rows"], told["card"]["valid_rate"]) == (2, 0.5)
    wrong = woodshed("export", "last", "--format", "csv", "--out", tmp_path / "out", home=tmp_path / "home")
    assert wrong.returncode == 2
    assert "Known: atif, sft, preference, grpo, calls" in wrong.stderr
    wrong = woodshed("export", "last", "--rules", "r.toml", "--out", tmp_path / "out", home=tmp_path / "home")
    assert wrong.returncode == 2
    assert "--rules: says nothing to the format 'atif'" in wrong.stderr
