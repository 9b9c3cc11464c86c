"""Every format of an export takes the options that it has a use for, and refuses the others by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # stubs are no dependency of ours

from exportkit import BROKEN, Emit, Talk, filled, rows_of, valid
from kit import ROOT
from woodshed.cli import export as export_command
from woodshed.errors import UsageError
from woodshed.model.fork import ForkSpec
from woodshed.model.rollout import CallRecord
from woodshed.services.exporting import FORMATS, Order, check, export
from woodshed.services.home import Home, opened
from woodshed.trainers import projections
from woodshed.trainers.near import Benchmark, repeated
from woodshed.trainers.rows import call_of, rollout_of
from woodshed.trainers.rules import ExportRules, PreferenceRules

OPTIONS = {
    "atif": {"--without", "--benchmark", "--near"},
    "sft": {"--without", "--benchmark", "--near", "--files", "--rules"},
    "preference": {"--without", "--benchmark", "--near", "--files", "--rules"},
    "grpo": {"--without", "--benchmark", "--near", "--files", "--vocabulary"},
    "calls": {"--without", "--benchmark", "--near", "--files", "--vocabulary"},
}
ALL = sorted(set().union(*OPTIONS.values()))
ATIF = Draft202012Validator(json.loads((Path(__file__).parent / "data" / "atif-1.8.schema.json").read_text()))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with opened(tmp_path / "home") as made:
        yield made


def told(instruction: str, *answers: str) -> Any:
    """A story: the same first call, then these answers."""
    def story(emit: Emit) -> None:
        talk = Talk(emit, instruction)
        talk.says("look", "ls", output="a b")
        for answer in answers:
            talk.says(answer)

    return story


def test_each_option_is_of_a_format_or_refused_by_name() -> None:
    """The whole table of formats and options; an unknown format is refused with those that there are."""
    assert set(OPTIONS) == set(FORMATS)
    for form, own in OPTIONS.items():
        assert check(form, own) == form
        for option in set(ALL) - own:
            with pytest.raises(UsageError) as refused:
                check(form, [option])
            assert (refused.value.field, form in str(refused.value)) == (option, True)
    with pytest.raises(UsageError, match="calls"):
        check("csv", [])


def test_the_page_has_the_same_table_and_every_field_of_a_call() -> None:
    """Options by format as they are refused or taken, and each field of the record by name."""
    page = (ROOT / "docs" / "exports.md").read_text()
    [forms, *lines] = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()
                       if line.startswith(("| option |", "| `--"))]
    taken = {(form, option) for line in lines for option in re.findall("--[a-z]+", line[0])
             for form, told in zip(forms[1:], line[1:], strict=True) if told == "yes"}
    assert taken == {(form, option) for form, own in OPTIONS.items() for option in own}
    assert all(f"`{name}`" in page for name in CallRecord.model_fields)


@pytest.mark.parametrize("form", FORMATS)
def test_held_out_tasks_are_in_no_format(form: Any, home: Home, tmp_path: Path) -> None:
    """By list and by benchmark; each export has a card that says so, and one before it leaves nothing behind."""
    bench = tmp_path / "bench.txt"
    bench.write_text("Sort the names of all users by age and print the oldest\n")
    tasks = [("listed", "do a", 1.0), ("listed", "do a", 0.0), ("kept", "do b", 1.0), ("kept", "do b", 0.0),
             ("near", "First sort the names of all users by age and print the oldest. Stop.", 1.0)]
    run = filled(home, [(name, valid(total), told(text, f"done {total}")) for name, text, total in tasks])
    out = tmp_path / "out"
    assert export(home, [run], Order(form, out)).card["dropped_tasks"] == {}
    made = export(home, [run], Order(form, out, without=("list*",), benchmark=bench))
    assert set(made.card["dropped_tasks"]) == {"listed", "near"}
    assert (made.card["format"], made.card["tasks"], made.card["attempts"]["finished"]) == (form, 1, 2)
    assert json.loads((out / "card.json").read_text()) == made.card
    whole = "".join(path.read_text() for path in out.rglob("*") if path.is_file() and path.name not in
                    ("card.json", "README.md"))
    assert "do b" in whole
    assert "do a" not in whole
    assert "users by age" not in whole


def test_trajectories_of_real_exports_fit_the_schema_of_atif(home: Home, tmp_path: Path) -> None:
    """JSON schema of ATIF 1.8, as Harbor publishes it: tool calls, an attempt that broke, one that did nothing."""
    run = filled(home, [("t", valid(1.0), told("do it", "done")), ("t", BROKEN, told("do it")),
                        ("u", valid(0.0), None)])
    made = export(home, [run], Order("atif", tmp_path / "out"))
    documents = [json.loads(file.read_text()) for file in made.files[:-2]]
    assert len(documents) == made.card["rows"] == 3
    for document in documents:
        ATIF.validate(document)
    assert not ATIF.is_valid({**documents[0], "steps": []})
    assert "configs:" not in (tmp_path / "out" / "README.md").read_text()
    (tmp_path / "out" / "mine.json").write_text("{}")
    with pytest.raises(UsageError, match=r"mine\.json"):
        export(home, [run], Order("atif", tmp_path / "out"))


def test_calls_and_rollouts_read_back_feed_every_projection(home: Home, tmp_path: Path) -> None:
    """Rows of two exports, joined by their rollout, give what the projections of model calls want."""
    run = filled(home, [("t", valid(1.0), told("do it", "done")), ("t", valid(0.0), told("do it", "no"))])
    made = export(home, [run], Order("calls", tmp_path / "calls"))
    export(home, [run], Order("grpo", tmp_path / "grpo"))
    calls = [call_of(row) for row in rows_of(tmp_path / "calls")]
    assert [(one.call, one.completion_token_ids) for one in calls[:2]] == [("m00001", (11, 2)), ("m00002", (12, 2))]
    assert made.card["tokens"]["capture_levels"] == {"tokens+logprobs": 4}
    for one in map(rollout_of, rows_of(tmp_path / "grpo")):
        own = [call for call in calls if call.rollout == one.rollout]
        nemo, openenv = projections.nemo(one, own), projections.openenv(one, own)
        assert (nemo["reward"], nemo["mask_sample"], len(nemo["response"]["output"])) == (one.reward, False, 2)
        assert [turn["completion_token_ids"] for turn in openenv["trace"]["turns"]] == [[11, 2], [12, 2]]


def test_pairs_are_of_a_task_over_all_runs(home: Home, tmp_path: Path) -> None:
    """By one agent, or by rule of any; each names both agents."""
    runs = [filled(home, [("t", valid(1.0), told("do it", "good"))], run="r1"),
            filled(home, [("t", valid(0.0), told("do it", "bad"))], run="r2"),
            filled(home, [("t", valid(0.0), told("do it", "worse"))], run="r3", agent="other")]
    made = export(home, runs, Order("preference", tmp_path / "out"))
    [row] = rows_of(tmp_path / "out")
    assert (row["chosen_attempt"], row["rejected_attempt"], row["agent"]) == ("r1-a00", "r2-a00", "loop")
    assert made.card["dropped"] == {"pairs: of different agents (any_agent = true takes them)": 2}
    export(home, runs, Order("preference", tmp_path / "out", rules=ExportRules(
        preference=PreferenceRules(any_agent=True))))
    assert [row["rejected_agent"] for row in rows_of(tmp_path / "out")] == ["loop", "other"]


def test_a_branch_is_paired_with_what_it_went_on_from(home: Home, tmp_path: Path) -> None:
    """By whichever agent; where that attempt's run is not among those given, the card says so."""
    first = filled(home, [("t", valid(0.0), told("do it", "bad"))], run="r1")
    branch = filled(home, [("t", valid(1.0), told("do it", "good"))], run="r2", agent="other",
                    fork=ForkSpec(attempt="r1-a00", execution=1, step=1))
    export(home, [first, branch], Order("preference", tmp_path / "out"))
    [row] = rows_of(tmp_path / "out")
    assert (row["chosen"][0]["content"], row["rejected"][0]["content"], len(row["prompt"])) == ("good", "bad", 3)
    alone = export(home, [branch], Order("preference", tmp_path / "out"))
    assert alone.card["empty"]["forks: what they went on from is not among the runs"] == 1


def test_a_set_without_a_token_to_learn_from_says_so(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the card, on its page and on the terminal, where else the way that prompts went on stands."""
    def silent(emit: Emit) -> None:
        Talk(emit, "do it", tokens=False).says("done")

    run = filled(home, [("t", valid(1.0), silent)])
    made = export(home, [run], Order("grpo", tmp_path / "out"))
    assert "none of the 1 rollouts is trainable" in made.card["warnings"][0]
    assert "none of the 1 rollouts is trainable" in (tmp_path / "out" / "README.md").read_text()
    export_command._show(made, tmp_path / "out")
    assert "none of the 1 rollouts is trainable" in " ".join(capsys.readouterr().err.split())
    run = filled(home, [("t", valid(1.0), told("do it", "done"))], run="r2")
    made = export(home, [run], Order("grpo", tmp_path / "out"))
    export_command._show(made, tmp_path / "out")
    shown = capsys.readouterr()
    assert made.card["warnings"] == []
    assert "trainable" not in shown.err
    assert "clean" in shown.out


LONG = "请把工作目录里所有日志文件按修改时间排序然后把最新的一个文件名写入结果文件"


@pytest.mark.parametrize(("item", "text", "alike"), [
    (LONG, "任务说明" + LONG.replace("然后", "之后") + "谢谢", True),
    ("ファイルを名前の順に並べてください", "次のとおり:ファイルを名前の順に並べてください。以上", True),
    (LONG, "数一数这个目录里有多少个空文件再删除它们并报告数量给用户看看结果如何", False),
    ("Reverse the given linked list", "Your job: reverse the given linked list, in place, and print every node", True),
    ("Write a function which will reverse the given linked list in place and return", "reverse the given linked list",
     True),
    ("Fix it", "Fix it so that the server starts again and answers on its usual port at once", False),
    ("ＳＯＲＴ all of the names by their length and print", "sort all of the names by their length and print", True),
], ids=["chinese", "japanese", "other-chinese", "short-item", "short-text", "too-short", "wide-letters"])
def test_what_resembles_an_item_is_found_in_any_script(item: str, text: str, alike: bool) -> None:
    """Scripts without spaces are compared by characters, and a short text is found within a longer one."""
    match = Benchmark.of([("one", item)]).nearest(text)
    assert (match is not None and match.share >= 0.5) is alike


def test_near_duplicates_among_its_own_tasks_are_counted(home: Home, tmp_path: Path) -> None:
    """In the card, with what each is near to; the first of those that are alike counts for itself."""
    text = "List every file below the folder logs that is larger than one megabyte"
    run = filled(home, [("a", valid(1.0), told(text, "x")), ("b", valid(1.0), told(f"{text}, please", "x")),
                        ("c", valid(1.0), told("Say hello", "x"))])
    card = export(home, [run], Order("sft", tmp_path / "out")).card
    assert card["near_duplicates"] == {"tasks": 1, "of": {"b": "near a (shares 1.00)"}}
    assert card["warnings"] == ["1 of 3 tasks resemble another task of this export"]
    assert repeated({"a": "", "b": ""}, 0.5) == {}


def test_licences_are_found_under_the_names_that_data_sets_give_them() -> None:
    """Whatever a row or a task folder calls it; without any it is undeclared."""
    from woodshed.trainers.card import Tally

    tally = Tally()
    for number, metadata in enumerate([{"license": "MIT"}, {"licence": "MIT"}, {"license_name": "MIT"}, {}, None]):
        tally.licence(f"t{number}", metadata)
    assert {name: len(tasks) for name, tasks in tally.licences.items()} == {"MIT": 3, "undeclared": 2}
