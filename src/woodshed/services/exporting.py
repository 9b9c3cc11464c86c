"""Exports: runs' finished attempts in others' formats, one group of attempts (of pairs, one task) in memory at a time.

Nothing leaves that was not looked at for secrets, and every data set says in its card what was left out, and why.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args

from woodshed import given
from woodshed.errors import UsageError
from woodshed.measure.trajectory import from_events
from woodshed.model import Attempt, EventKind, Run, Task
from woodshed.model.rollout import CaptureLevel
from woodshed.services import selection
from woodshed.services.declared import read_toml
from woodshed.services.gathering import Gatherer
from woodshed.services.ground import root
from woodshed.services.history import history
from woodshed.services.home import Home
from woodshed.services.lent import lent
from woodshed.services.source import Source
from woodshed.tasks.rows import read_items
from woodshed.trainers import chat, grpo, preference, sft
from woodshed.trainers.atif import to_atif
from woodshed.trainers.card import Tally, card, page
from woodshed.trainers.files import Form, Shards
from woodshed.trainers.near import Benchmark, repeated
from woodshed.trainers.rules import ExportRules
from woodshed.trainers.secrets import Masker

Format = Literal["atif", "sft", "preference", "grpo", "calls"]
FORMATS: tuple[Format, ...] = get_args(Format)
TAKEN: dict[str, tuple[Format, ...]] = {
    "--rules": ("sft", "preference"), "--files": ("sft", "preference", "grpo", "calls"),
    "--vocabulary": ("grpo", "calls"), "--without": FORMATS, "--benchmark": FORMATS, "--near": FORMATS,
}
"""The formats that each option says something to; all others refuse it."""
LIST_BYTES = 10_000_000
"""Of a list of names, a line each."""
NEAR = 0.5
"""Share of the smaller one's n-grams with which a text resembles another, where nobody says."""
Progress = Callable[[int, int], None]
_TEXTS = ("instruction", "problem_statement", "prompt", "question", "text", "content")
_NAMES = ("id", "task_id", "instance_id", "name")
_OURS = {"README.md", "card.json", "data"}
_ATIF = b'{\n "schema_version": "ATIF-'


@dataclass(frozen=True, slots=True)
class Order:
    """An export that is asked for.

    ``without`` are patterns of task ids, or digests, that are left out; so is a task whose instruction shares at least
    ``near`` of the smaller one's n-grams with an item of ``benchmark``. ``vocabulary`` is how many ids the model has.
    """

    form: Format
    out: Path
    files: Form = "jsonl"
    rules: ExportRules = field(default_factory=ExportRules)
    without: tuple[str, ...] = ()
    benchmark: Path | None = None
    near: float = NEAR
    vocabulary: int | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: data files, then the card as JSON and as a page; and the card."""

    files: tuple[Path, ...]
    card: Mapping[str, Any]


def check(form: str, options: Iterable[str]) -> Format:
    """The format, where it is known and each of the options that were given is of it. Raises UsageError."""
    known = next((one for one in FORMATS if one == form), None)
    if known is None:
        raise UsageError(f"unknown format '{form}'", field="--format", remedy=f"Known: {', '.join(FORMATS)}.")
    for option in options:
        if known not in TAKEN[option]:
            raise UsageError(f"says nothing to the format '{known}'", field=option,
                             remedy=f"Leave it out: it is of {', '.join(TAKEN[option])}.")
    return known


def export(home: Home, runs: Sequence[Run], order: Order, told: Progress = lambda done, total: None) -> Exported:
    """Write these runs in the order's folder: a data set in ``data/``, or an ATIF file for each finished attempt, named

    by its id; then ``card.json`` and ``README.md``. Secrets are masked. An earlier export there is replaced. ``told``
    is called with attempts done and all of them. Raises UsageError for a folder that holds anything else, a benchmark
    that cannot be read, or Parquet without pyarrow.
    """
    runs = list({run.id: run for run in runs}.values())
    values, unknown = lent(runs)
    masker = Masker(values)
    work = _Work(home, order, masker, _benchmark(order.benchmark), Gatherer(home, masker, order.vocabulary))
    out = _emptied(order.out)
    files = _trajectories(work, runs, told) if order.form == "atif" else _dataset(work, runs, told)
    work.tally.near = {name: f"near {match.item} (shares {match.share:.2f})"
                       for name, match in repeated(work.texts, order.near).items()}
    rules = getattr(order.rules, order.form).to_json() if order.form in TAKEN["--rules"] else {}
    filters = {"without": list(order.without), "benchmark": order.benchmark.name if order.benchmark else None,
               "benchmark_items": len(work.benchmark), "near": order.near, "lent_but_unknown_now": unknown}
    made = masker.masked(card(work.tally, form=order.form, rules=rules, filters=filters, masked=dict(masker.found)))
    beside = (out / "card.json", out / "README.md")
    _write(beside[0], json.dumps(made, ensure_ascii=False, indent=1) + "\n")
    _write(beside[1], page(made, None if order.form == "atif" else order.files))
    return Exported((*files, *beside), made)


def _dataset(work: _Work, runs: Sequence[Run], told: Progress) -> list[Path]:
    with Shards(work.order.out, work.order.files, work.order.form) as shards:
        for row in work.rows(runs, told):
            shards.add(work.gatherer.masked(row))
    work.tally.rows = shards.rows
    return shards.files


def _trajectories(work: _Work, runs: Sequence[Run], told: Progress) -> list[Path]:
    files = []
    for run, attempts in work.groups(runs, told):
        models = {agent.name: agent.model.name if agent.model else None for agent in run.spec.agents}
        for attempt in attempts:
            if attempt.outcome is None:
                continue
            trajectory = from_events(history(work.home, attempt), task=attempt.task, agent=attempt.agent,
                                     model=models[attempt.agent])
            path = work.order.out / f"{attempt.id}.json"
            document = work.masker.masked(to_atif(trajectory, attempt.outcome.verdict, run=run.id))
            _write(path, json.dumps(document, ensure_ascii=False, indent=1) + "\n")
            files.append(path)
    work.tally.rows = len(files)
    return files


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
    learnt: Counter[str] = field(default_factory=Counter)
    """Of each task, the attempts that gave examples."""
    clean: dict[tuple[str, str], bool] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    digests: dict[tuple[str, str], str] = field(default_factory=dict)

    def rows(self, runs: Sequence[Run], told: Progress) -> Iterator[dict[str, Any]]:
        """All rows, in the order of runs, then of tasks and agents by name, then of attempts.

        Pairs are of whole tasks: by their names, over all runs.
        """
        if self.order.form != "preference":
            for run, attempts in self.groups(runs, told):
                yield from self._group(run, attempts)
            return
        for _, of in groupby(self.groups(runs, told, by_task=True), lambda group: group[1][0].task):
            found = [one for run, attempts in of for one in self._candidates(run, attempts)]
            yield from preference.pairs(found, self.order.rules.preference, self.tally.dropped)

    def groups(
        self, runs: Sequence[Run], told: Progress, *, by_task: bool = False
    ) -> Iterator[tuple[Run, list[Attempt]]]:  # fmt: skip
        """The attempts of each task by an agent in a run that are exported, which are counted; one group in memory."""
        listed = {run.id: self.home.store.groups.of(run.id) for run in runs}
        done, total = 0, sum(group.total for groups in listed.values() for group in groups)
        for run in runs:
            self._begin(run)
        sources = {run.id: Source(self.home, run).tasks for run in runs}
        places = [(run, *place) for run in runs
                  for place in sorted((group.task, group.agent) for group in listed[run.id])]
        for run, name, agent in sorted(places, key=lambda place: place[1]) if by_task else places:
            attempts, task = self.home.store.attempts(run.id, group=(name, agent)), sources[run.id].get(name)
            if self._wanted(run, name, task, attempts):
                self.tally.licence(name, task.metadata if task is not None else None)
                for attempt in attempts:
                    self.tally.attempt(attempt)
                yield run, attempts
            done += len(attempts)
            told(done, total)

    def _begin(self, run: Run) -> None:
        self.tally.run(run)
        if self.order.form == "grpo":
            found = selection.selected(self.home, run, self.home.store.attempts(run.id))
            self.tally.selection += selection.warnings(found)

    def _wanted(self, run: Run, name: str, task: Task | None, attempts: Sequence[Attempt]) -> bool:
        """Whether a task is exported; looked at once for all agents, and the reason kept where it is not."""
        key = (run.id, name)
        if key not in self.clean:
            why = self._unwanted(run, name, task, attempts)
            if why is not None:
                self.tally.dropped_tasks[name] = why
            self.clean[key] = why is None
        return self.clean[key]

    def _unwanted(self, run: Run, name: str, task: Task | None, attempts: Sequence[Attempt]) -> str | None:
        digest = task.digest if task is not None else None
        if any(fnmatchcase(name, pattern) or pattern == digest for pattern in self.order.without):
            return "in the list"
        text = task.instruction if task is not None else self._instruction(attempts)
        if (match := self.benchmark.nearest(text)) is not None and match.share >= self.order.near:
            return f"near {match.item} of the benchmark (shares {match.share:.2f})"
        self.texts.setdefault(name, text)
        if digest is not None:
            self.digests[run.id, name] = digest
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
                yield from self._examples(attempt)
        elif self.order.form == "calls":
            for attempt in over:
                yield from self._calls(run, attempt)
        elif len(over) < len(attempts):
            self.tally.dropped["groups: not complete"] += 1
        else:
            yield from self._rollouts(run, over)

    def _examples(self, attempt: Attempt) -> Iterator[dict[str, Any]]:
        rules = self.order.rules.sft
        if rules.most is not None and self.learnt[attempt.task] >= rules.most:
            self.tally.dropped["attempts: more than enough of one task"] += 1
            return
        events = history(self.home, attempt)
        made = list(sft.examples(attempt, self.gatherer.calls(events), chat.tried(events), rules, self.tally.dropped))
        self.learnt[attempt.task] += bool(made)
        yield from made

    def _candidates(self, run: Run, attempts: Sequence[Attempt]) -> Iterator[preference.Candidate]:
        rules, rated = self.order.rules.preference, self.home.store.ratings.of(run.id)
        parent = root(self.home, run)
        for attempt in attempts:
            if attempt.outcome is None:
                continue
            made = preference.candidate(
                attempt, self.gatherer.calls(history(self.home, attempt)),
                [rating.stars for rating in rated.get(attempt.id, ())], rules, self.tally.dropped,
                digest=self.digests.get((run.id, attempt.task)), parent=parent)
            if made is not None:
                yield made

    def _calls(self, run: Run, attempt: Attempt) -> Iterator[dict[str, Any]]:
        records, lost = self.gatherer.records(attempt)
        self.tally.dropped["calls: without an answer to rely upon"] += len(lost)
        for record in records:
            self.tally.levels[record.capture_level.value] += 1
            self.tally.untrainable.update(_common(record.flaws))
            self.tally.trainable += not record.flaws and record.capture_level is not CaptureLevel.TEXT
            yield {"group": f"{run.id}/{attempt.task}/{attempt.agent}", "task": attempt.task, "agent": attempt.agent,
                   **record.to_json()}

    def _rollouts(self, run: Run, over: Sequence[Attempt]) -> Iterator[dict[str, Any]]:
        group = []
        for attempt in over:
            made, prompt = self.gatherer.rollout(attempt)
            self.tally.levels[made.capture_level.value] += 1
            self.tally.drift.update(made.drift)
            self.tally.trainable += made.trainable
            self.tally.untrainable.update(_common(made.untrainable))
            group.append((made, prompt))
        yield from grpo.rows(run.id, group)


def _common(reasons: Iterable[str]) -> set[str]:
    """The reasons without the names of calls, so that they can be counted."""
    return {re.sub(r"\bm\d{5,}\b", "…", reason) for reason in reasons}


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
    strange = sorted(path.name for path in folder.iterdir() if path.name not in _OURS and not _trajectory(path))
    strange += [path.name for path in data.iterdir() if not fnmatchcase(path.name, "train-*")] if data.is_dir() else []
    if strange:
        raise UsageError(f"holds something else ({strange[0]})", file=folder, field="--out",
                         remedy="Name a new or empty folder.")
    for path in (*filter(Path.is_file, folder.iterdir()), *(data.iterdir() if data.is_dir() else ())):
        path.unlink(missing_ok=True)
    return folder


def _trajectory(path: Path) -> bool:
    """Whether an earlier export wrote this file."""
    if path.suffix != ".json" or path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_ATIF)) == _ATIF


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
