"""Data sets from a filled store: what is in them, what is left out and why, and that nothing secret leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exportkit import BROKEN, Emit, Talk, filled, rows_of, valid
from woodshed.cli import export as export_command
from woodshed.errors import UsageError
from woodshed.model import ModelSpec
from woodshed.model.event import now
from woodshed.model.process import Rating
from woodshed.services.exporting import Order, export, load_rules
from woodshed.services.home import Home, opened
from woodshed.trainers.rules import ExportRules, PreferenceRules, SftRules

TRL = {"sft": {"prompt", "completion", "tools"}, "preference": {"prompt", "chosen", "rejected", "tools"}}
KEY = "pk-9f8e7d6c5b4a"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with opened(tmp_path / "home") as made:
        yield made


def good(emit: Emit) -> None:
    talk = Talk(emit, "Sort the file names of the folder into a list and write it to out.txt")
    talk.says("look", "ls")
    talk.says("wrng", "python sort.py --to out.tx", exit_code=1, output="no such option")
    talk.says("right", "python sort.py --to out.txt", output="done")
    talk.says("finished")


def bad(emit: Emit) -> None:
    talk = Talk(emit, "Sort the file names of the folder into a list and write it to out.txt")
    talk.says("look", "ls")
    talk.says("nothing to do")


def test_sft_takes_the_answers_that_deserve_it(home: Home, tmp_path: Path) -> None:
    """Passed attempts only, without the step that failed and was made again; the card counts the rest by reason."""
    run = filled(home, [("t", valid(1.0), good), ("t", valid(0.0), bad), ("t", BROKEN, bad),
                        ("u", valid(1.0, ("weakens_tests",)), good), ("t", None, None)])
    made = export(home, [run], Order("sft", tmp_path / "out"))
    rows = rows_of(tmp_path / "out")
    assert [row["completion"][0]["content"] for row in rows] == ["look", "right", "finished"]
    assert set(rows[0]) >= TRL["sft"]
    assert rows[1]["prompt"][-2]["content"] == "wrng"  # what was left out is still what came before
    call = rows[0]["completion"][0]["tool_calls"][0]["function"]
    assert call == {"name": "bash", "arguments": {"command": "ls"}}
    assert made.card["dropped"] == {"answers: failed and redone": 1, "attempts: flagged": 1, "attempts: not passed": 1,
                                    "attempts: not valid": 1}
    assert made.card["attempts"] == {"finished": 4, "unfinished": 1, "valid": 3, "passed": 2,
                                     "invalid_by_cause": {"environment": 1}}
    assert made.card["valid_rate"] == 0.75
    assert made.card["licences"] == {"undeclared": 2}


def test_easy_tasks_do_not_outweigh_the_rest(home: Home, tmp_path: Path) -> None:
    """Of a task so many attempts give examples as the rules allow, the first that deserve it; the rest are counted."""
    file = tmp_path / "rules.toml"
    file.write_text("[sft]\nmost = 1\n")
    run = filled(home, [("t", valid(0.0), bad), *[("t", valid(1.0), good)] * 3, ("u", valid(1.0), good)])
    made = export(home, [run], Order("sft", tmp_path / "out", rules=load_rules(file)))
    assert {(row["task"], row["attempt"]) for row in rows_of(tmp_path / "out")} == {("t", "r1-a01"), ("u", "r1-a04")}
    assert made.card["dropped"]["attempts: more than enough of one task"] == 2


def test_rules_are_data(home: Home, tmp_path: Path) -> None:
    """A file of rules changes what deserves it, and stands in the card; a word that no rule has is refused."""
    file = tmp_path / "rules.toml"
    file.write_text("[sft]\npassed = false\nredone = 2.0\n")
    run = filled(home, [("t", valid(1.0), good), ("t", valid(0.0), bad)])
    made = export(home, [run], Order("sft", tmp_path / "out", rules=load_rules(file)))
    assert made.card["rows"] == 6
    assert made.card["rules"]["passed"] is False
    file.write_text("[sft]\npased = false\n")
    with pytest.raises(UsageError, match="passed"):
        load_rules(file)


def test_preference_pairs_part_where_the_attempts_do(home: Home, tmp_path: Path) -> None:
    """The prompt is what both share, chosen is the better rest; invalid attempts and ties make no pair."""
    run = filled(home, [("t", valid(1.0), good), ("t", valid(0.0), bad), ("t", BROKEN, bad), ("t", valid(0.0), bad)])
    made = export(home, [run], Order("preference", tmp_path / "out"))
    rows = rows_of(tmp_path / "out")
    assert [(row["chosen_attempt"], row["rejected_attempt"]) for row in rows] == [
        ("r1-a00", "r1-a01"), ("r1-a00", "r1-a03")]
    assert set(rows[0]) >= TRL["preference"]
    assert [one["role"] for one in rows[0]["prompt"]] == ["user", "assistant", "tool"]
    assert (rows[0]["chosen"][0]["content"], rows[0]["rejected"]) == (
        "wrng", [{"role": "assistant", "content": "nothing to do"}])
    assert made.card["dropped"] == {"attempts: not valid": 1, "pairs: ties": 1}
    step = export(home, [run], Order("preference", tmp_path / "out", rules=ExportRules(
        preference=PreferenceRules(step=True, most=1))))
    assert [len(row["chosen"]) for row in rows_of(tmp_path / "out")] == [1]
    assert step.card["dropped"]["pairs: more than enough of one task"] == 1


def test_people_decide_where_rewards_tie_and_never_against_them(home: Home, tmp_path: Path) -> None:
    """Ratings make a pair of equal totals; where they contradict the totals there is none."""
    run = filled(home, [("t", valid(1.0), good), ("t", valid(1.0), bad),
                        ("u", valid(1.0), good), ("u", valid(0.0), bad)])
    for attempt, stars in (("r1-a00", 2), ("r1-a01", 5), ("r1-a02", 1), ("r1-a03", 5)):
        home.store.ratings.add(Rating(attempt=attempt, stars=stars, at=now()))
    made = export(home, [run], Order("preference", tmp_path / "out"))
    [row] = rows_of(tmp_path / "out")
    assert (row["chosen_attempt"], row["by"]) == ("r1-a01", "rating")
    assert made.card["dropped"] == {"pairs: ratings contradict rewards": 1}


def test_a_flagged_attempt_is_never_the_better_one(home: Home, tmp_path: Path) -> None:
    """What weakens tests may be shown as worse, and not as an example."""
    run = filled(home, [("t", valid(1.0, ("weakens_tests",)), good), ("t", valid(0.0), bad)])
    assert export(home, [run], Order("preference", tmp_path / "out")).card["dropped"] == {
        "pairs: the better one is flagged": 1}


def test_grpo_groups_are_whole_and_invalid_ones_move_nothing(home: Home, tmp_path: Path) -> None:
    """Reward null, cause and no advantage for an invalid rollout; the baseline is that of the valid ones alone."""
    run = filled(home, [("t", valid(1.0), good), ("t", valid(0.0), bad), ("t", BROKEN, bad), ("u", valid(1.0), good),
                        ("u", None, None)])
    made = export(home, [run], Order("grpo", tmp_path / "out"))
    rows = rows_of(tmp_path / "out")
    assert [(row["reward"], row["valid"], row["cause"], row["advantage"]) for row in rows] == [
        (1.0, True, None, 0.5), (0.0, True, None, -0.5), (None, False, "environment", None)]
    assert {(row["group"], row["group_size"], row["group_valid"], row["baseline"]) for row in rows} == {
        ("r1/t/loop", 3, 2, 0.5)}
    assert [row["trainable"] for row in rows] == [True, True, False]
    assert made.card["dropped"] == {"groups: not complete": 1}
    [ids] = rows[0]["rows"]
    assert sum(ids["loss_mask"]) == 8
    assert ids["token_ids"][:8] == [1, 2, 3, 11, 2, 21, 12, 2]
    assert made.card["tokens"]["drift"] == {"begun": 3, "clean": 5}


def secretive(emit: Emit) -> None:
    talk = Talk(emit, f"Log in to postgres://admin:hunter2hunter2@db/x with {KEY}")
    talk.says(f"export KEY={KEY}", "env", output="AKIA" + "A1B2C3D4E5F6G7H8")
    talk.says("done")


@pytest.mark.parametrize("form", ["sft", "preference", "grpo", "calls", "atif"])
def test_no_secret_leaves(form: Any, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a lent value nor anything of a secret's shape is in any file; without the masker it would be."""
    monkeypatch.setenv("LENT_KEY", KEY)
    model = ModelSpec(name="tiny", base_url="http://127.0.0.1:1/v1", key_variable="LENT_KEY")

    def other(emit: Emit) -> None:
        talk = Talk(emit, f"Log in to postgres://admin:hunter2hunter2@db/x with {KEY}")
        talk.says(f"no {KEY}")

    run = filled(home, [("t", valid(1.0), secretive), ("t", valid(0.0), other)], model=model)
    out = tmp_path / "out"

    def written() -> str:
        export(home, [run], Order(form, out))
        return "".join(file.read_text() for file in sorted(out.rglob("*")) if file.is_file())

    text = written()
    assert not any(secret in text for secret in (KEY, "hunter2hunter2", "AKIAA1B2"))
    assert "[masked:variable:LENT_KEY]" in text
    if form == "calls":
        assert {row["prompt_token_ids"] for row in rows_of(out)} == {None}
        assert all("ids cannot be masked" in row["flaws"][0] for row in rows_of(out))
    if form == "grpo":
        assert not any(row["trainable"] or row["rows"] for row in rows_of(out))
        assert "ids cannot be masked" in text
    monkeypatch.setattr("woodshed.trainers.secrets.Masker.text", lambda self, text: text)
    assert KEY in written()


def test_tasks_that_resemble_a_benchmark_are_left_out(home: Home, tmp_path: Path) -> None:
    """By a list of patterns, and by shared n-grams; the card names each task and what it is near to."""
    file = tmp_path / "bench.jsonl"
    file.write_text(json.dumps({"id": "B7", "problem_statement": "SORT the file names, of the folder - into a list and "
                                "write it to out.txt. Then stop."}) + "\n")

    def fresh(emit: Emit) -> None:
        Talk(emit, "Count how many lines each of these logs has and tell me the largest one by name please").says("ok")

    run = filled(home, [("near", valid(1.0), good), ("listed-1", valid(1.0), fresh), ("kept", valid(1.0), fresh)])
    made = export(home, [run], Order("sft", tmp_path / "out", without=("listed-*",), benchmark=file))
    assert {row["task"] for row in rows_of(tmp_path / "out")} == {"kept"}
    assert made.card["dropped_tasks"]["listed-1"] == "in the list"
    assert made.card["dropped_tasks"]["near"].startswith("near B7 of the benchmark")
    assert made.card["tasks"] == 1


@pytest.mark.parametrize("form", ["sft", "preference", "grpo", "calls"])
def test_parquet_holds_the_rows_of_jsonl(form: Any, home: Home, tmp_path: Path) -> None:
    """Each row is there, with open tables as JSON text, and both kinds are the same bytes when written again."""
    parquet = pytest.importorskip("pyarrow.parquet")
    run = filled(home, [("t", valid(1.0), good), ("t", valid(0.0), bad), ("t", BROKEN, None)])
    order = Order(form, tmp_path / "lines")
    first = {file.name: file.read_bytes() for file in export(home, [run], order).files}
    assert first == {file.name: file.read_bytes() for file in export(home, [run], order).files}
    lines = rows_of(tmp_path / "lines")
    columns = replace(order, out=tmp_path / "columns", files="parquet")
    before = export(home, [run], columns).files[0].read_bytes()
    [file, *_] = export(home, [run], columns).files
    assert file.read_bytes() == before
    rows = parquet.read_table(file).to_pylist()
    assert len(rows) == len(lines) > 0
    for row, line in zip(rows, lines, strict=True):
        assert row.keys() == line.keys()
        assert json.loads(row["tools"] or "null") == line["tools"] if "tools" in row else row["rows"] == line["rows"]
        chat = "messages" if form == "calls" else "prompt"
        assert [json.loads(one) for one in row[chat]] == line[chat]
    assert f"path: data/train-*.{columns.files}" in (tmp_path / "columns" / "README.md").read_text()


def test_an_export_replaces_an_export_and_nothing_else(home: Home, tmp_path: Path) -> None:
    """A folder that holds anything of anyone's is refused before a file is written."""
    run = filled(home, [("t", valid(1.0), good)])
    out = tmp_path / "out"
    export(home, [run], Order("sft", out))
    export(home, [run], Order("grpo", out))
    assert json.loads((out / "card.json").read_text())["format"] == "grpo"
    (out / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match=r"mine\.txt"):
        export(home, [run], Order("sft", out))


def test_no_rows_are_an_empty_set(home: Home, tmp_path: Path) -> None:
    """Where nothing deserves it there is one empty file, and a card that says why."""
    run = filled(home, [("t", valid(0.0), bad)])
    made = export(home, [run], Order("sft", tmp_path / "out", rules=ExportRules(sft=SftRules(min_total=2.0))))
    assert rows_of(tmp_path / "out") == []
    assert made.card["dropped"] == made.card["empty"] == {"attempts: not passed": 1}
    assert "| no rows: attempts: not passed | 1 |" in (tmp_path / "out" / "README.md").read_text()


EMPTY: list[tuple[Any, list[Any], dict[str, Any], dict[str, int]]] = [
    ("sft", [("t", valid(1.0), None), ("t", None, None), ("t", BROKEN, good)], {},
     {"attempts: no answer of a model": 1, "attempts: not finished": 1, "attempts: not valid": 1}),
    ("preference", [("t", valid(1.0), good)], {}, {"groups: a single attempt, and nothing to pair it with": 1}),
    ("preference", [("t", valid(1.0), good), ("t", valid(1.0), good)], {}, {"pairs: ties": 1}),
    ("grpo", [("t", valid(1.0), good), ("t", None, None)], {},
     {"attempts: not finished": 1, "groups: not complete": 1}),
    ("grpo", [("t", valid(1.0), good)], {"without": ("t",)}, {"tasks: in the list": 1}),
]


@pytest.mark.parametrize(("form", "stories", "how", "why"), EMPTY, ids=map(str, range(len(EMPTY))))
def test_no_emptiness_is_silent(
    form: Any, stories: list[Any], how: dict[str, Any], why: dict[str, int], home: Home, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever leaves no row is counted by rule: in the card, and on the terminal."""
    run = filled(home, stories)
    made = export(home, [run], Order(form, tmp_path / "out", **how))
    assert (made.card["rows"], made.card["empty"]) == (0, why)
    export_command._show(made, tmp_path / "out")
    told = " ".join(capsys.readouterr().out.split())
    assert all(words in told for words in why), told


def test_a_set_with_rows_gives_no_reason_for_emptiness(home: Home, tmp_path: Path) -> None:
    """What it left out stands under what was dropped alone."""
    run = filled(home, [("t", valid(1.0), good), ("t", valid(0.0), bad)])
    made = export(home, [run], Order("sft", tmp_path / "out"))
    assert made.card["rows"]
    assert "empty" not in made.card
