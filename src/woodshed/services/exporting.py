"""Exports: runs' finished attempts in others' formats, one group of attempts in memory at a time.

Nothing leaves that was not looked at for secrets, and every data set says in its card what was left out, and why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

from woodshed import given
from woodshed.errors import UsageError
from woodshed.measure.trajectory import from_events
from woodshed.model import Attempt, EventKind, Run, Task
from woodshed.services import selection
from woodshed.services.declared import read_toml
from woodshed.services.gathering import Gatherer
from woodshed.services.history import history
from woodshed.services.home import Home
from woodshed.services.lent import lent
from woodshed.services.source import Source
from woodshed.tasks.rows import read_items
from woodshed.trainers import chat, grpo, preference, sft
from woodshed.trainers.atif import to_atif
from woodshed.trainers.card import Tally, card, page
from woodshed.trainers.files import Form, Shards
from woodshed.trainers.near import Benchmark
from woodshed.trainers.rules import ExportRules
from woodshed.trainers.secrets import Masker

Dataset = Literal["sft", "preference", "grpo"]
FORMATS = ("atif", *get_args(Dataset))
LIST_BYTES = 10_000_000
"""Of a list of names, a line each."""
Progress = Callable[[int, int], None]
_TEXTS = ("instruction", "problem_statement", "prompt", "question", "text", "content")
_NAMES = ("id", "task_id", "instance_id", "name")
_OURS = {"README.md", "card.json", "data"}


@dataclass(frozen=True, slots=True)
class Order:
    """A data set that is asked for.

    ``without`` are patterns of task ids, or digests, that are left out; so is a task whose instruction shares at least
    ``near`` of the smaller one's n-grams with an item of ``benchmark``. ``vocabulary`` is how many ids the model has.
    """

    form: Dataset
    out: Path
    files: Form = "jsonl"
    rules: ExportRules = field(default_factory=ExportRules)
    without: tuple[str, ...] = ()
    benchmark: Path | None = None
    near: float = 0.5
    vocabulary: int | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: data files, then the card as JSON and as a page; and the card."""

    files: tuple[Path, ...]
    card: Mapping[str, Any]


def export(home: Home, run: Run, form: str, folder: Path) -> list[Path]:
    """One ATIF 1.8 file for each finished attempt, named by its id, with secrets masked; the files written.

    Raises UsageError for another format or a folder that cannot be made.
    """
    if form != "atif":
        raise UsageError(f"unknown format '{form}'", field="--format", remedy=f"Known: {', '.join(FORMATS)}.")
    _make(folder)
    masker = Masker(lent([run])[0])
    models = {agent.name: agent.model.name if agent.model else None for agent in run.spec.agents}
    files = []
    for attempt in home.store.attempts(run.id):
        if attempt.outcome is None:
            continue
        events = history(home, attempt)
        trajectory = from_events(events, task=attempt.task, agent=attempt.agent, model=models[attempt.agent])
        path = folder / f"{attempt.id}.json"
        document = masker.masked(to_atif(trajectory, attempt.outcome.verdict, run=run.id))
        _write(path, json.dumps(document, ensure_ascii=False, indent=1) + "\n")
        files.append(path)
    return files


def dataset(home: Home, runs: Sequence[Run], order: Order, told: Progress = lambda done, total: None) -> Exported:
    """Write the data set of these runs: ``data/``, ``card.json`` and ``README.md`` in the order's folder.

    An earlier export there is replaced. ``told`` is called with attempts done and all of them. Raises UsageError for a
    folder that holds anything else, a benchmark that cannot be read, or Parquet without pyarrow.
    """
    runs = list({run.id: run for run in runs}.values())
    values, unknown = lent(runs)
    masker = Masker(values)
    work = _Work(home, order, masker, _benchmark(order.benchmark), Gatherer(home, masker, order.vocabulary))
    with Shards(_emptied(order.out), order.files, order.form) as shards:
        for row in work.rows(runs, told):
            shards.add(work.masked(row))
    work.tally.rows = shards.rows
    rules = {} if order.form == "grpo" else getattr(order.rules, order.form).to_json()
    filters = {"without": list(order.without), "benchmark": order.benchmark.name if order.benchmark else None,
               "benchmark_items": len(work.benchmark), "near": order.near, "lent_but_unknown_now": unknown}
    made = work.masker.masked(card(work.tally, form=order.form, rules=rules, filters=filters,
                                   masked=dict(work.masker.found)))
    beside = (order.out / "card.json", order.out / "README.md")
    _write(beside[0], json.dumps(made, ensure_ascii=False, indent=1) + "\n")
    _write(beside[1], page(made, order.files))
    return Exported((*shards.files, *beside), made)


def load_rules(file: Path | None) -> ExportRules:
    """The rules that a TOML file declares in ``[sft]`` and ``[preference]``; the defaults without one.

    Raises UsageError naming the field.
    """
    return ExportRules() if file is None else ExportRules.parse(read_toml(file, "docs/exports.md"), file=file)


def load_list(file: Path) -> tuple[str, ...]:
    """Lines of a file, without blank ones and comments (``#``). Raises UsageError."""
    lines = given.text(file, LIST_BYTES).splitlines()
    return tuple(text for line in lines if (text := line.partition("#")[0].strip()))


@dataclass(slots=True)
class _Work:
    """One export while it goes on."""

    home: Home
    order: Order
    masker: Masker
    benchmark: Benchmark
    gatherer: Gatherer
    tally: Tally = field(default_factory=Tally)
    clean: dict[tuple[str, str], bool] = field(default_factory=dict)

    def rows(self, runs: Sequence[Run], told: Progress) -> Iterator[dict[str, Any]]:
        """All rows, in the order of runs, then of tasks and agents by name, then of attempts."""
        listed = {run.id: self.home.store.groups.of(run.id) for run in runs}
        done, total = 0, sum(group.total for groups in listed.values() for group in groups)
        for run in runs:
            self.tally.run(run)
            if self.order.form == "grpo":
                found = selection.selected(self.home, run, self.home.store.attempts(run.id))
                self.tally.selection += selection.warnings(found)
            tasks = Source(self.home, run).tasks
            for task, agent in sorted((group.task, group.agent) for group in listed[run.id]):
                attempts = self.home.store.attempts(run.id, group=(task, agent))
                if self._wanted(run, task, tasks.get(task), attempts):
                    self.tally.licence(task, tasks[task].metadata if task in tasks else None)
                    for attempt in attempts:
                        self.tally.attempt(attempt)
                    yield from self._group(run, attempts)
                done += len(attempts)
                told(done, total)

    def masked(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row with its texts masked. Rows of ids hold none, and are many."""
        rows = row.pop("rows", None)
        made: dict[str, Any] = self.masker.masked(row)
        return made if rows is None else {**made, "rows": rows}

    def _wanted(self, run: Run, name: str, task: Task | None, attempts: Sequence[Attempt]) -> bool:
        """Whether a task is exported; looked at once for all agents, and the reason kept where it is not."""
        key = (run.id, name)
        if key not in self.clean:
            why = self._unwanted(name, task, attempts)
            if why is not None:
                self.tally.dropped_tasks[name] = why
            self.clean[key] = why is None
        return self.clean[key]

    def _unwanted(self, name: str, task: Task | None, attempts: Sequence[Attempt]) -> str | None:
        digest = task.digest if task is not None else None
        if any(fnmatchcase(name, pattern) or pattern == digest for pattern in self.order.without):
            return "in the list"
        if not len(self.benchmark):
            return None
        text = task.instruction if task is not None else self._instruction(attempts)
        if (match := self.benchmark.nearest(text)) is not None and match.share >= self.order.near:
            return f"near {match.item} of the benchmark (shares {match.share:.2f})"
        return None

    def _instruction(self, attempts: Sequence[Attempt]) -> str:
        """What the first attempt that tells of it was told, where the task's folder is no longer what it was."""
        for attempt in attempts:
            for event in history(self.home, attempt) if attempt.executions else ():
                if event.kind is EventKind.MESSAGE and event.data.get("role") == "user":
                    return str(event.data.get("content", ""))
        return ""

    def _group(self, run: Run, attempts: Sequence[Attempt]) -> Iterator[dict[str, Any]]:
        over = [attempt for attempt in attempts if attempt.outcome is not None]
        if self.order.form == "sft":
            for attempt in over:
                events = history(self.home, attempt)
                yield from sft.examples(attempt, self.gatherer.calls(events), chat.tried(events), self.order.rules.sft,
                                        self.tally.dropped)
        elif self.order.form == "preference":
            yield from self._pairs(run, over)
        elif len(over) < len(attempts):
            self.tally.dropped["groups: not complete"] += 1
        else:
            yield from self._rollouts(run, over)

    def _pairs(self, run: Run, over: Sequence[Attempt]) -> Iterator[dict[str, Any]]:
        rules, rated = self.order.rules.preference, self.home.store.ratings.of(run.id)
        found = [preference.candidate(attempt, self.gatherer.calls(history(self.home, attempt)),
                                      [rating.stars for rating in rated.get(attempt.id, ())], rules, self.tally.dropped)
                 for attempt in over]
        yield from preference.pairs([one for one in found if one is not None], rules, self.tally.dropped)

    def _rollouts(self, run: Run, over: Sequence[Attempt]) -> Iterator[dict[str, Any]]:
        group = []
        for attempt in over:
            made, prompt = self.gatherer.rollout(attempt)
            self.tally.levels[made.capture_level.value] += 1
            self.tally.drift.update(made.drift)
            self.tally.trainable += made.trainable
            self.tally.untrainable.update({re.sub(r"\bm\d{5,}\b", "…", reason) for reason in made.untrainable})
            group.append((made, prompt))
        yield from grpo.rows(run.id, group)


def _benchmark(file: Path | None) -> Benchmark:
    """Texts of a JSONL file (the first known field of each row), or the lines of a text file. Raises UsageError."""
    if file is None:
        return Benchmark()
    if file.suffix not in (".jsonl", ".json", ".ndjson"):
        return Benchmark.of((f"line {number}", line) for number, line in enumerate(load_list(file), 1))
    return Benchmark.of(_items(file))


def _items(file: Path) -> Iterator[tuple[str, str]]:
    for item in read_items(file):
        text = next((value for key in _TEXTS if isinstance(value := item.values.get(key), str)), None)
        if text is None:
            raise UsageError("no text to compare with", file=f"{file}:{item.line}",
                             remedy=f"One of the fields must hold it: {', '.join(_TEXTS)}.")
        named = next((item.values[key] for key in _NAMES if item.values.get(key) is not None), f"line {item.line}")
        yield str(named), text


def _emptied(folder: Path) -> Path:
    """The folder, without an earlier export in it. Raises UsageError where it holds anything else."""
    _make(folder)
    data = folder / "data"
    strange = sorted({path.name for path in folder.iterdir()} - _OURS)
    strange += [path.name for path in data.iterdir() if not fnmatchcase(path.name, "train-*")] if data.is_dir() else []
    if strange:
        raise UsageError(f"holds something else ({strange[0]})", file=folder, field="--out",
                         remedy="Name a new or empty folder.")
    for path in (folder / "card.json", folder / "README.md", *(data.iterdir() if data.is_dir() else ())):
        path.unlink(missing_ok=True)
    return folder


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot be made: {error.strerror}", file=folder, field="--out", remedy="Choose another."
        ) from error


def _write(path: Path, text: str) -> None:
    """UTF-8 whatever the locale; half surrogate pairs (of names that are no Unicode) become question marks."""
    path.write_bytes(text.encode("utf-8", "replace"))
