"""Plans: from what is recorded alone, with prices in whole micro-units, and a word of what the evidence cannot bear."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kit import EXAMPLES, woodshed
from woodshed.engine.lease import Lease
from woodshed.errors import Cause, UsageError
from woodshed.measure.costs import Tokens, bill, total
from woodshed.measure.occupancy import most_at_once, of_a_slot
from woodshed.measure.rare import tries_for, upper_bound
from woodshed.measure.simulation import Limits, Sample
from woodshed.model import (
    Agent,
    AgentLimits,
    Assurance,
    Invalid,
    ModelSpec,
    Outcome,
    Run,
    RunSpec,
    StopReason,
    Usage,
    Used,
    Valid,
)
from woodshed.model.event import now
from woodshed.model.prices import ModelPrice, PriceBook, StoragePrice, WorkerPrice
from woodshed.model.retry import Broken
from woodshed.services import durations, planning
from woodshed.services.benching import plan as bench
from woodshed.services.home import Home, opened
from woodshed.services.planning import Crowd, Question
from woodshed.services.recorded import Recorded, recorded
from woodshed.services.runs import planned
from woodshed.store import EventLog, new_run_id
from woodshed.store.records import Store
from woodshed.tasks.load import find_tasks

TASKS = find_tasks([EXAMPLES / "first-steps"])
ORACLE = Agent(name="oracle", harness="oracle")
GOOD = Valid(rewards={}, total=1.0, assurance=Assurance.CANARY)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A new home in which nothing ever ran."""
    with opened(tmp_path / "home") as home:
        yield home


def outcome(**stages: float) -> Outcome:
    """A passed execution with these stages; its sandboxes used half a second of processors and 100 MB."""
    used = Used(sandboxes=2, sandbox_s=1.0, cpu_s=0.5, memory_peak_bytes=100 << 20, disk_bytes=1 << 20)
    return Outcome(verdict=GOOD, stop=StopReason.FINISHED, stages_s=stages, used={"verify": used},
                   usage=Usage(prompt_tokens=100, completion_tokens=10))


def broken() -> Outcome:
    """An execution that the environment broke."""
    fault = Broken(cause=Cause.ENVIRONMENT, stage="prepare", retryable=True)
    return Outcome(verdict=Invalid(cause=Cause.ENVIRONMENT, detail="no disk", retryable=True), stop=StopReason.ERROR,
                   broke=fault, stages_s={"prepare": 1.0})


class Past:
    """A finished run whose executions took what they are said to take, two at a time, from its creation on."""

    def __init__(self, home: Home, *, attempts: int = 4, agent: Agent = ORACLE, executor: str | None = None) -> None:
        self.home, self.at = home, now() - timedelta(hours=1)
        digests = {str(task.folder): task.digest for task in TASKS}
        spec = RunSpec(tasks=tuple(digests), digests=digests, agents=(agent,), attempts=attempts, concurrency=2)
        self.run = Run(id=new_run_id(), spec=spec, created_at=self.at)
        with Lease(home.path) as lease:
            self.executor = executor or lease.executor
        home.store.create_run(self.run, planned(self.run, TASKS))

    def took(self, seconds: float = 2.0, *, break_every: int = 0) -> str:
        """Every attempt took so long; every so-manieth broke once before. The run's id."""
        ends = [self.at, self.at]
        for number, attempt in enumerate(self.home.store.attempts(self.run.id), 1):
            broke = bool(break_every) and number % break_every == 0
            for what in [broken(), outcome(act=1.5, verify=0.5)] if broke else [outcome(act=1.5, verify=0.5)]:
                begin = min(ends)
                end = begin + timedelta(seconds=seconds)
                ends[ends.index(begin)] = end
                self._execution(attempt.id, what, begin.isoformat(), end.isoformat())
        return self.run.id

    def _execution(self, attempt: str, what: Outcome, begin: str, end: str) -> None:
        number = self.home.store.begin_execution(attempt, self.executor)
        assert number is not None
        log = EventLog(self.home.store, attempt, number)
        if what.broke is None:
            assert log.finish(what)
        else:
            log.set_aside(what)
        _date(self.home.store, attempt, number, begin, end)


def _date(store: Store, attempt: str, number: int, begin: str, end: str) -> None:
    """The execution began and ended then."""
    with store._engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE executions SET started_at = ?, finished_at = ? WHERE attempt = ? AND number = ?",
            (begin, end, attempt, number))


def question(**fields: Any) -> Question:
    """What ten attempts of each example task by the oracle take, on two slots."""
    return Question(**{"tasks": TASKS, "agents": (ORACLE,), "attempts": 10, "crowd": Crowd(1, 2, 2.0), "rounds": 5,
                       **fields})


def test_a_plan_tells_what_the_records_say(home: Home) -> None:
    """Equal attempts of two seconds on two slots: time, slots, tokens, cost and memory are arithmetic."""
    Past(home).took(2.0)
    book = PriceBook(worker=WorkerPrice(hour_micros=3_600_000), storage=StoragePrice(gb_month_micros=1024_000_000))
    asked = question(book=book, within_s=len(TASKS) * 5.0)
    answer = planning.told(asked, planning.evidence(home, asked))
    count = 10 * len(TASKS)
    assert answer["attempts"] == count
    assert answer["forecast"]["makespan_p50_s"] == pytest.approx(count, rel=0.02)
    assert answer["forecast"]["bottleneck"] == "slots"
    assert answer["forecast"]["prompt_tokens"] == 100 * count
    assert answer["stages"] == {"act": 0.75, "verify": 0.25}
    assert answer["cost"]["micros_p50"] == pytest.approx(count * 1000 + count * 1_000_000, rel=0.02)
    assert answer["needed"] == {"within_s": len(TASKS) * 5.0, "workers": 2, "slots": 4}
    assert [row["workers"] for row in answer["around"]] == [1, 2, 4]
    for row in answer["around"]:
        if row["workers"] == answer["workers"]:
            assert {name: row[name] for name in ("makespan_p50_s", "makespan_p90_s", "slots_used", "bottleneck")} == {
                name: answer["forecast"][name] for name in ("makespan_p50_s", "makespan_p90_s", "slots_used",
                                                            "bottleneck")}
    assert answer["evidence"]["worker_memory_mb"] == 200.0
    assert answer["evidence"]["pilots_for_claim"] == 149
    assert answer["warnings"] == [] or answer["evidence"]["executions"] < planning.THIN


def test_retries_are_recorded_and_told(home: Home) -> None:
    """Executions that broke are part of the evidence, with what they add and how rare they may be."""
    Past(home, attempts=10).took(2.0, break_every=5)
    found = planning.evidence(home, question())
    assert found.broken == found.executions // 6
    answer = planning.told(question(rounds=10), found)
    assert answer["forecast"]["retries"] > 0
    assert answer["forecast"]["added_by_retries_s"] > 0
    assert 1 / 6 < answer["evidence"]["broken_at_most"] < 0.5


def test_thin_foreign_and_missing_evidence_is_told(home: Home) -> None:
    """Few executions, tasks that were never measured, another home and unknown processors are each warned of."""
    past = Past(home, attempts=1, executor="elsewhere-1")
    past.took()
    found = planning.evidence(home, question())
    said = "\n".join(planning.told(question(), found)["warnings"])
    assert f"only {len(TASKS)} executions" in said
    assert f"recorded in another home: {len(TASKS)} executions" in said
    found.samples.pop((TASKS[0].id, "oracle"))
    found.cpu_known = False
    said = "\n".join(planning.told(question(crowd=Crowd(1, 8, 2.0)), found)["warnings"])
    assert f"1 of {len(TASKS)} tasks were never measured and are taken to be like the others: {TASKS[0].id}" in said
    assert "what they slow each other is not in it" in said


def test_other_agents_and_changed_tasks_tell_nothing(home: Home) -> None:
    """Another agent's executions, or those of a task that has changed since, are no evidence; without any: refused."""
    Past(home, agent=Agent(name="nop", harness="nop")).took()
    changed = [task.model_copy(update={"digest": "sha256:other"}) for task in TASKS]
    assert planning.evidence(home, question()).executions == 0
    Past(home).took()
    assert recorded(home, changed, [ORACLE], home.store.runs()).executions == 0
    assert planning.evidence(home, question()).executions == 4 * len(TASKS)
    with pytest.raises(UsageError, match="--pilot 20"):
        planning.told(question(), Recorded())


def test_a_pilot_is_spread_over_the_tasks(home: Home) -> None:
    """As many attempts as asked, of every task where that is enough, else of tasks evenly chosen; within the slots."""
    spec, tasks = planning.pilot_spec(question(), 3 * len(TASKS) + 1, engine="native")
    assert (spec.attempts, len(tasks)) == (3, len(TASKS))
    assert spec.concurrency <= 2
    spec, tasks = planning.pilot_spec(question(), 2, engine="native")
    assert (spec.attempts, len(tasks)) == (1, 2)


@pytest.mark.parametrize(("text", "field"), [
    ("worker = 3", "worker"), ("[worker]\nhour_micros = 0.35", "worker.hour_micros"),
    ("[worker]\nhour_micros = -1", "worker.hour_micros"), ("[worker]\nhour_micro = 1", "worker.hour_micro"),
    ("[model.a]\nprompt_micros_per_million = 1\ngpu_hour_micros = 2", "model.a"), ("[model.a]\ngpus = 2", "model.a"),
    ('currency = "dollars"', "currency"), ("version = 2", "version"), ("[storage]", "storage.gb_month_micros"),
    ("[worker", "broken TOML"),
])
def test_a_bad_price_book_is_refused_by_file_and_field(text: str, field: str, tmp_path: Path) -> None:
    """The message names the file and what is wrong in it."""
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        planning.load_prices(file)
    assert str(file) in str(refused.value)
    assert field in str(refused.value)


def test_every_model_must_have_a_price(tmp_path: Path) -> None:
    """A model that the book does not name is refused, unless it prices all others."""
    agent = Agent(name="loop", harness="loop", model=ModelSpec(name="m", base_url="http://h/v1"), limits=AgentLimits())
    with pytest.raises(UsageError, match=r"prices.toml: model\.m: the model has no price"):
        planning.check_prices(PriceBook(), [agent], tmp_path / "prices.toml")
    planning.check_prices(PriceBook(model={"*": ModelPrice(gpu_hour_micros=1)}), [agent], tmp_path)


def test_a_bill_is_exact() -> None:
    """Tokens by the million, GPUs held or working, workers and storage: whole micro-units, each line rounded once."""
    book = PriceBook(worker=WorkerPrice(hour_micros=350_000), storage=StoragePrice(gb_month_micros=100, kept_days=15),
                     model={"a": ModelPrice(prompt_micros_per_million=100_000, completion_micros_per_million=400_000),
                            "b": ModelPrice(gpu_hour_micros=2_000_000, gpus=4),
                            "c": ModelPrice(gpu_hour_micros=2_000_000, gpus=4, tokens_per_s=1000)})
    used = {"a": Tokens(1_000_005, 500_000), "b": Tokens(1, 1), "c": Tokens(0, 1_800_000), "unknown": Tokens(9, 9)}
    lines = bill(book, makespan_s=1800, workers=3, tokens=used, kept_gb=10)
    assert [(line.what, line.micros) for line in lines] == [
        ("workers", 525_000), ("a: prompt", 100_001), ("a: completion", 200_000), ("b: GPUs", 4_000_000),
        ("c: GPUs", 4_000_000), ("storage", 500)]
    assert total(lines) == sum(line.micros for line in lines)


def test_rare_events_are_bounded() -> None:
    """Three by the number of tries where none was seen; 149 tries for two percent; known bounds where some were."""
    assert tries_for(0.02) == 149
    assert tries_for(0.05) == 59
    assert upper_bound(0, 149) == pytest.approx(0.0199, abs=1e-4)
    assert upper_bound(0, 1000) == pytest.approx(3 / 1000, rel=0.01)
    assert upper_bound(2, 50) == pytest.approx(0.1206, abs=1e-4)
    assert upper_bound(7, 7) == 1.0
    for bad in ((3, 2), (-1, 5)):
        with pytest.raises(ValueError, match="no bound"):
            upper_bound(*bad)
    with pytest.raises(ValueError, match="no number of tries"):
        tries_for(0)


def test_occupancy_tells_waiting_and_gaps() -> None:
    """Executions that wait for a slot take less of one than they stood open; gaps between them take more."""
    back_to_back = [(float(n), n + 1.0) for n in range(20)]
    assert of_a_slot(back_to_back, 1) == pytest.approx(1.0)
    assert of_a_slot([(float(n), n + 2.0) for n in range(20)], 1) == pytest.approx(0.5, rel=0.05)
    assert of_a_slot([(float(n), n + 0.8) for n in range(20)], 1) == pytest.approx(1.25)
    assert of_a_slot(back_to_back[:2], 1) == 1.0
    assert of_a_slot([(n * 100.0, n * 100.0 + 1) for n in range(20)], 1) == 1.0  # it was interrupted
    assert (most_at_once(back_to_back), most_at_once([]), most_at_once([(0, 2), (1, 3), (1.5, 1.6)])) == (1, 0, 3)


def test_a_task_seen_rarely_breaks_as_often_as_all() -> None:
    """Of few executions the breaks say nothing: one broken of twenty tasks is a twentieth for each of them."""
    fault = Broken(cause=Cause.ENVIRONMENT, retryable=True)
    found = Recorded(samples={(str(n), "a"): [Sample(1.0)] for n in range(19)})
    found.samples["0", "a"].append(Sample(9.0, broken=fault))
    pairs = [*found.samples, ("never", "a")]
    for samples in found.for_simulation(pairs).values():
        assert sum(one.broken is not None for one in samples) / len(samples) == pytest.approx(0.05, abs=0.03)


def test_words_for_workers_and_time() -> None:
    """4x16, 4, 10m, 1.5h are understood; nonsense names its option."""
    assert planning.parse_workers("4x16", 2) == (4, 16)
    assert planning.parse_workers("4", 2) == (4, 2)
    for text in ("", "x4", "0x1", "4x0", "4x", "-1", "1e3", "9" * 5000, "٣"):
        with pytest.raises(UsageError, match="--workers"):
            planning.parse_workers(text, 2)
    assert [durations.seconds(text, "f") for text in ("90", "90s", "10m", "1.5h", "2d")] == [90, 90, 600, 5400, 172_800]
    for text in ("", "0", "10 m", "m", "-3", "1e3", "inf", "1w"):
        with pytest.raises(UsageError, match="--drain-target"):
            durations.seconds(text, "--drain-target")
    spoken = [durations.spoken(span) for span in (3.21, 250, 7500, 194_400)]
    assert spoken == ["3.2 s", "4 min 10 s", "2 h 05 min", "2 d 6 h"]


def test_an_endpoint_and_a_rate_bound_the_plan(home: Home) -> None:
    """What all attempts share is the bottleneck where it is narrower than the slots."""
    agent = Agent(name="loop", harness="loop", model=ModelSpec(name="m", base_url="http://h/v1"))
    Past(home, agent=agent).took(2.0)
    for limits, bottleneck in ((Limits(places=1), "endpoint"), (Limits(per_minute=10), "rate")):
        asked = question(agents=(agent,), crowd=Crowd(4, 4, 4.0), limits=limits)
        assert planning.told(asked, planning.evidence(home, asked))["forecast"]["bottleneck"] == bottleneck


def test_a_plan_is_judged_by_how_far_off_it_was() -> None:
    """Too long and too short count alike; the aim is met at the median of the rounds."""
    made = [{"foretold_p50_s": 90.0, "foretold_p90_s": 99.0, "took_s": 100.0, "off": -0.1},
            {"foretold_p50_s": 130.0, "foretold_p90_s": 140.0, "took_s": 100.0, "off": 0.3},
            {"foretold_p50_s": 112.0, "foretold_p90_s": 120.0, "took_s": 100.0, "off": 0.12}]
    figures = bench.figures(made)
    assert (figures["off"], figures["off_percent"], figures["met"]) == (0.12, 12.0, True)
    assert not bench.figures(made[1:2])["met"]
    with pytest.raises(UsageError, match="Raise both"):
        bench.measure([EXAMPLES / "first-steps"], attempts=1000, pilot=2, concurrency=2, rounds=1, seed=0, told=print)


@pytest.mark.slow
def test_a_small_plan_is_measured(tmp_path: Path) -> None:
    """The whole measurement on one task: a pilot, a plan, a run, and figures that say where they come from."""
    asked = (EXAMPLES / "first-steps" / "write-file", "-n", "8", "--pilot", "4", "--rounds", "1")
    done = woodshed("bench", "plan", *asked, "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["benchmark"], figures["attempts"], figures["pilot"]) == ("plan", 8, 4)
    assert {"commit", "machine", "seed", "samples"} <= figures.keys()
    assert figures["foretold_p50_s"] > 0


@pytest.mark.slow
def test_the_command_pilots_plans_and_prints(tmp_path: Path) -> None:
    """Without evidence it says how to get some; with a pilot it answers, for people and for programs."""
    task, prices = EXAMPLES / "first-steps" / "write-file", tmp_path / "prices.toml"
    prices.write_text("[worker]\nhour_micros = 350_000\n")
    asked = ("plan", task, "-a", "oracle", "-n", "50", "--workers", "3x2", "--price-book", prices)
    refused = woodshed(*asked, home=tmp_path)
    assert refused.returncode == 2
    assert "--pilot 20" in refused.stderr
    told = woodshed(*asked, "--pilot", "6", "--within", "1h", home=tmp_path)
    assert told.returncode == 0, told.stderr
    title = "50 attempts of 1 task by oracle on 3 workers, 6 slots"
    assert all(word in told.stdout for word in (title, "bottleneck:", "cost, USD", "within 1 h 00 min"))
    assert "only 6 executions" in told.stderr
    answer = json.loads(woodshed(*asked, "--json", home=tmp_path).stdout)
    assert answer["evidence"]["executions"] == 6
    assert answer["forecast"]["makespan_p50_s"] > 0
