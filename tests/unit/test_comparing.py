"""Comparisons from the store: labels, what is left out, sentences, and a page that nobody's name can break."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from woodshed.cli import compare as cli_compare
from woodshed.cli import measures
from woodshed.errors import Cause, UsageError
from woodshed.model import (
    Agent,
    Assurance,
    Attempt,
    Invalid,
    ModelSpec,
    Outcome,
    Run,
    RunSpec,
    RunState,
    StopReason,
    Usage,
    Valid,
    Verdict,
)
from woodshed.model.event import now
from woodshed.model.prices import ModelPrice, PriceBook
from woodshed.services import process
from woodshed.services.agents import crossed
from woodshed.services.comparing import gathered, page, told
from woodshed.services.home import Home, opened

HOSTILE = "<script>alert('x')</script>&\"'\N{RIGHT-TO-LEFT OVERRIDE}"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """One home; each test has runs of its own."""
    with opened(tmp_path_factory.mktemp("comparing")) as place:
        yield place


def model(name: str) -> ModelSpec:
    return ModelSpec(name=name, base_url="http://127.0.0.1:1/v1")


def verdict(mark: str) -> Verdict:
    if mark == "!":
        return Invalid(cause=Cause.ENVIRONMENT, detail="it broke")
    total = float(mark == "+")
    return Valid(rewards={"reward": total}, total=total, assurance=Assurance.CANARY)


def recorded(home: Home, name: str, *agents: tuple[Agent, Sequence[str]], digest: str = "0", prefix: str = "t") -> Run:
    """A finished run of these agents, outcomes by task and index: ``+``, ``-``, ``!``, and ``.`` is still open."""
    count = max(len(rows) for _, rows in agents)
    tasks = [f"{prefix}{number}" for number in range(count)]
    spec = RunSpec(tasks=tuple(f"/{task}" for task in tasks), digests={f"/{task}": digest for task in tasks},
                   groups=dict.fromkeys(tasks, "g"), agents=tuple(agent for agent, _ in agents))
    run = Run(id=name, spec=spec, created_at=now())
    planned, marks = list[Attempt](), list[str]()
    for agent, rows in agents:
        for task, row in zip(tasks, rows, strict=False):
            for index, mark in enumerate(row):
                planned.append(Attempt(id=f"{name}.{len(planned) + 1}", run=name, task=task, agent=agent.name,
                                       index=index, seed=0))
                marks.append(mark)
    home.store.create_run(run, planned)
    for attempt, mark in zip(planned, marks, strict=True):
        if mark != ".":
            execution = home.store.begin_execution(attempt.id, "h") or 0
            usage = Usage(prompt_tokens=900, completion_tokens=100)
            home.store.finish_attempt(attempt.id, execution, Outcome(
                verdict=verdict(mark), stop=StopReason.FINISHED, usage=usage, stages_s={"act": 2.0}))
    home.store.set_run_state(name, RunState.FINISHED)
    return run


def test_a_run_of_two_agents_is_compared_with_all_that_people_read(home: Home) -> None:
    """Rates, pairs, scores, costs and a sentence; invalid attempts are shown and are no zeros."""
    good, bad = Agent(name="good", harness="loop", model=model("m")), Agent(name="bad", harness="nop")
    recorded(home, "r-two", (good, ["++", "+!", "++", "++", "++", "++", "++"]), (bad, ["--"] * 7))
    prices = PriceBook(model={"m": ModelPrice(prompt_micros_per_million=1_000_000,
                                              completion_micros_per_million=2_000_000)})
    found = told(gathered(home, ["r-two"], prices))
    [pair] = found["pairs"]
    assert (pair["decided"], pair["wins"], pair["tries"], pair["difference"]) == ("a", 7, 13, 1.0)
    assert pair["says"] == "good passes 100.0 points more than bad (p = 0.016)."
    first = found["agents"][0]
    assert (first["valid"], first["pass_rate"], first["invalid"]) == (13, 1.0, {"environment": 1})
    assert (first["values"]["tokens"], first["values"]["seconds"], first["values"]["cost"]) == (1000, 2.0, 1100)
    assert (first["tokens_per_success"], first["micros_per_success"]) == (14_000 / 13, 14 * 1100 / 13)
    assert any("93 % of its attempts are valid" in text for text in found["warnings"])
    assert any(text.startswith("1 pairs of attempts are left out") for text in found["warnings"])
    assert pair["dropped"][0]["why"] == "good: environment"


def test_agents_of_one_name_are_told_apart_by_model_and_run(home: Home) -> None:
    """Two models of one harness, and the same agent in two runs, have labels of their own."""
    one, two = (Agent(name="loop", harness="loop", model=model(name)) for name in ("m1", "m2"))
    recorded(home, "r-m1", (one, ["+"]))
    recorded(home, "r-m2", (two, ["-"]))
    recorded(home, "r-m3", (two, ["-"]))
    pair = told(gathered(home, ["r-m1", "r-m2"]))["pairs"][0]
    assert (pair["a"], pair["b"], pair["same"]) == ("loop · m1", "loop · m2", "harness")
    assert list(gathered(home, ["r-m1", "r-m2", "r-m3"]).agents) == [
        "loop · m1", "loop · m2 · r-m2", "loop · m2 · r-m3"]


def test_a_grid_of_runs_has_its_two_way_table(home: Home) -> None:
    """Two harnesses with two models each: rates by both, and the effect of either."""
    agents = [(Agent(name=f"{h}@{m}", harness=h, model=model(m)), ["+" if (h, m) == ("h1", "m1") else "-"] * 6)
              for h in ("h1", "h2") for m in ("m1", "m2")]
    recorded(home, "r-grid", *agents)
    found = told(gathered(home, ["r-grid"]))
    assert found["grid"]["rates"] == {"h1": {"m1": 1.0, "m2": 0.0}, "h2": {"m1": 0.0, "m2": 0.0}}
    assert {pair["same"] for pair in found["pairs"]} == {"harness", "model", None}
    assert "Harness and model" in page(found)


def test_what_cannot_be_compared_is_refused_or_said(home: Home) -> None:
    """One agent alone, an unknown one, changed tasks, and attempts without a result."""
    a, b = Agent(name="a", harness="nop"), Agent(name="b", harness="oracle")
    recorded(home, "r-a", (a, ["+.", "-"]), prefix="u")
    recorded(home, "r-b", (b, ["-", "+"]), digest="1", prefix="u")
    with pytest.raises(UsageError, match="fewer than two agents"):
        gathered(home, ["r-a", "r-a"])
    with pytest.raises(UsageError, match="no agent 'c'"):
        gathered(home, ["r-a", "r-b"], only=["a", "c"])
    found = told(gathered(home, ["r-a", "r-b"]))
    assert found["pairs"] == []
    assert any("u0 is not the same in all runs" in text for text in found["left_out"])
    assert any("1 attempt without a result yet" in text for text in found["left_out"])


def test_noise_says_what_would_decide_it(home: Home) -> None:
    """The sentence has the difference, that it is noise, and numbers of attempts and tasks."""
    a, b = Agent(name="a", harness="nop"), Agent(name="b", harness="oracle")
    recorded(home, "r-noise", (a, ["+-", "-+", "++", "--"] * 3), (b, ["--", "-+", "+-", "-+"] * 3))
    pair = told(gathered(home, ["r-noise"]))["pairs"][0]
    assert pair["decided"] == "noise"
    assert "+12.5 points" in pair["says"]
    assert "is noise. To decide one of this size with a power of 80 %: about" in pair["says"]
    assert f"{pair['more_tasks']} more tasks like these" in pair["says"]


def test_too_few_tasks_are_said_to_be_too_few(home: Home) -> None:
    """A difference as large as can be, at three tasks, is no noise: tasks are asked for, and no attempts."""
    a, b = Agent(name="a", harness="nop"), Agent(name="b", harness="oracle")
    recorded(home, "r-few", (a, ["++"] * 3), (b, ["--"] * 3))
    pair = told(gathered(home, ["r-few"]))["pairs"][0]
    assert (pair["more_attempts"], pair["more_tasks"]) == (None, 3)
    assert pair["says"].startswith("a and b differ by +100.0 points, at 3 tasks: too few to decide")


class Reader(HTMLParser):
    """Tags and attributes as a browser reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_stands_by_itself_and_no_name_gets_out_of_its_place(home: Home) -> None:
    """No script, no address, nothing but known tags, whatever agents, models and tasks are called."""
    agents = [(Agent(name=f"{HOSTILE}{n}", harness="loop", model=model(f"{HOSTILE}{n}")), ["+!", "-+"])
              for n in range(2)]
    recorded(home, "r-hostile", *agents, prefix=HOSTILE)
    html = page(told(gathered(home, ["r-hostile"])))
    reader = Reader()
    reader.feed(html)
    assert "<script" not in html
    assert "alert(&#x27;x&#x27;)" in html
    assert {tag for tag, _ in reader.tags} <= {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "svg", "line", "circle", "rect",
        "text", "div", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"}
    for tag, attributes in reader.tags:
        assert not {name for name in attributes if name.startswith("on") or name in ("href", "src", "action")}, tag
    assert "http" not in html.replace("http-equiv", "")
    html.encode()


def test_people_rate_finished_attempts_and_ratings_add_up(home: Home) -> None:
    """Each rating stands; an attempt without a result has none; measures count their mean."""
    agent = Agent(name="a", harness="nop")
    recorded(home, "r-rated", (agent, ["+."]))
    process.rate(home, "r-rated.1", 5, "", "ann")
    process.rate(home, "r-rated.1", 2, "slow \udc80", "bob")
    found: dict[str, Any] = process.of_attempt(home, home.store.attempt("r-rated.1"))
    assert next(row["value"] for row in found["measures"] if row["name"] == "rating") == (3.5 - 1) / 4
    assert [one.by for one in home.store.ratings.of("r-rated")["r-rated.1"]] == ["ann", "bob"]
    with pytest.raises(UsageError, match="nothing to rate yet"):
        process.rate(home, "r-rated.2", 3, "", "")
    with pytest.raises(UsageError, match="no valid verdict"):
        process.of_attempt(home, home.store.attempt("r-rated.2"))


def test_measures_of_a_run_leave_invalid_attempts_out_and_say_so(home: Home, tmp_path: Path) -> None:
    """They are listed with their cause; the agent's figures are of the valid ones."""
    agent = Agent(name="a", harness="nop")
    run = recorded(home, "r-left", (agent, ["+!", "-"]))
    found = process.told(process.measured(home, run), run)
    assert [(row["attempt"], row["why"]) for row in found["left_out"]] == [("r-left.2", "invalid: environment")]
    assert found["agents"][0]["measures"]["accepted"] == 0.5
    assert found["agents"][0]["why"]["user_satisfaction"][0]["attempt"] == "r-left.3"


def test_the_commands_print_what_the_services_tell(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    """Tables for people, one object for programs, a page where one is asked for; hostile names steer no terminal."""
    monkeypatch.setenv("WOODSHED_HOME", str(home.path))
    agents = [(Agent(name=f"\x1b[31m{name}", harness=name), ["+-", "++"]) for name in ("nop", "oracle")]
    recorded(home, "r-shown", *agents, prefix="s")
    cli_compare.compare(["r-shown"], html=tmp_path / "page.html")
    measures.rate("r-shown.1", 2, note="slow", by="")
    measures.measures("r-shown")
    measures.measures("r-shown.1")
    measures.report("r-shown")
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out
    assert "No difference between" in printed.out
    assert "lost satisfaction:" in printed.out
    assert "2 of 5: slow" in printed.out
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    cli_compare.compare(["r-shown"], json=True)
    assert json.loads(capsys.readouterr().out)["pairs"][0]["ties"] == 2
    with pytest.raises(UsageError, match="is no folder, and others are"):
        cli_compare.compare([str(tmp_path), "r-shown"])
    with pytest.raises(UsageError, match="--model"):
        cli_compare.compare(["r-shown"], model=["m@http://127.0.0.1:1/v1"])


def test_agents_are_crossed_with_models_by_name() -> None:
    """Each harness that needs a model has each; one that needs none stands once; names say which is which."""
    agents = crossed(["loop", "nop"], [model("m1"), model("m2")])
    assert [agent.name for agent in agents] == ["loop@m1", "nop", "loop@m2"]
    assert [agent.name for agent in crossed(["loop"], [model("m1")])] == ["loop"]
    with pytest.raises(UsageError, match="the same name"):
        crossed(["loop"], [model("m1"), model("m1")])
