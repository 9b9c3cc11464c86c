"""Data card: what a data set holds, what was left out of it and why, as JSON and as a page that dataset hubs read.

No time of export stands in it: the same record exported twice gives the same bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from woodshed.model import Attempt, Run, Valid
from woodshed.model.counted import counted
from woodshed.version import __version__

VERSION = 1
_SHOWN = 100
"""Near duplicates that are named; all are counted."""
_UNDECLARED = "undeclared"
_LICENCE = ("license", "licence", "license_name", "licence_name", "license_expression")


@dataclass(slots=True)
class Tally:
    """What is counted while an export goes on."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    attempts: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    licences: dict[str, set[str]] = field(default_factory=dict)
    tasks: set[str] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_tasks: dict[str, str] = field(default_factory=dict)
    drift: Counter[str] = field(default_factory=Counter)
    levels: Counter[str] = field(default_factory=Counter)
    untrainable: Counter[str] = field(default_factory=Counter)
    trainable: int = 0
    rows: int = 0
    selection: list[str] = field(default_factory=list)
    near: dict[str, str] = field(default_factory=dict)

    def run(self, run: Run) -> None:
        """One more run is exported."""
        agents = [{"name": agent.name, "harness": agent.harness, "model": agent.model.name if agent.model else None}
                  for agent in run.spec.agents]
        self.runs.append({"id": run.id, "created_at": run.created_at.isoformat(), "state": run.state.value,
                          "seed": run.spec.seed, "attempts": run.spec.attempts, "agents": agents})

    def attempt(self, attempt: Attempt) -> None:
        """One more attempt of a task that is exported."""
        self.tasks.add(attempt.task)
        if attempt.outcome is None:
            self.attempts["unfinished"] += 1
            return
        verdict = attempt.outcome.verdict
        self.attempts["finished"] += 1
        if not isinstance(verdict, Valid):
            self.causes[verdict.cause.value] += 1
            return
        self.attempts["valid"] += 1
        self.attempts["passed"] += verdict.passed
        self.totals["unknown" if verdict.total is None else f"{verdict.total:.3g}"] += 1

    def licence(self, task: str, metadata: Mapping[str, Any] | None) -> None:
        """What licence the task declares in its metadata, if any."""
        named = {key.lower(): value for key, value in (metadata or {}).items()}
        declared = next((named[key] for key in _LICENCE if named.get(key)), _UNDECLARED)
        self.licences.setdefault(str(declared), set()).add(task)


def card(tally: Tally, *, form: str, rules: Mapping[str, Any], filters: Mapping[str, Any], masked: Mapping[str, int]
         ) -> dict[str, Any]:
    """The card as plain JSON values."""
    finished, valid = tally.attempts["finished"], tally.attempts["valid"]
    made: dict[str, Any] = {
        "version": VERSION, "woodshed": __version__, "format": form, "rows": tally.rows, "runs": tally.runs,
        "tasks": len(tally.tasks), "attempts": {
            "finished": finished, "unfinished": tally.attempts["unfinished"], "valid": valid,
            "passed": tally.attempts["passed"], "invalid_by_cause": _sorted(tally.causes)},
        "valid_rate": valid / finished if finished else None,
        "pass_rate_of_valid": tally.attempts["passed"] / valid if valid else None,
        "totals": _sorted(tally.totals),
        "licences": {name: len(tasks) for name, tasks in sorted(tally.licences.items())},
        "rules": dict(rules), "filters": dict(filters), "dropped": _sorted(tally.dropped),
        "dropped_tasks": dict(sorted(tally.dropped_tasks.items())), "secrets_masked": _sorted(masked),
        "near_duplicates": {"tasks": len(tally.near), "of": dict(sorted(tally.near.items())[:_SHOWN])},
    }
    if not tally.rows:
        made["empty"] = _empty(tally)
    if form in ("grpo", "calls"):
        made["tokens"] = {"trainable": tally.trainable, "untrainable": _sorted(tally.untrainable),
                          "capture_levels": _sorted(tally.levels), "drift": _sorted(tally.drift)}
    if form == "grpo":
        made["selection_warnings"] = list(tally.selection)
    made["warnings"] = _warnings(tally, form)
    return made


def _warnings(tally: Tally, form: str) -> list[str]:
    """What whoever trains on this must know, and would not see in the rows."""
    found = []
    if form == "grpo" and tally.rows and not tally.trainable:
        found.append(f"none of the {tally.rows} rollouts is trainable: there are rewards, and no token to learn from")
    if tally.near:
        found.append(f"{len(tally.near)} of {len(tally.tasks)} tasks resemble another task of this export")
    return found


def _empty(tally: Tally) -> dict[str, int]:
    """Why there is no row: every rule that left something out, with how often; those for whole tasks, too."""
    why = Counter(f"tasks: {words.partition(' (')[0]}" for words in tally.dropped_tasks.values())
    why["attempts: not finished"] = tally.attempts["unfinished"]
    return _sorted(why + tally.dropped)


def page(told: Mapping[str, Any], form: str | None) -> str:
    """The card as README.md: a header that ``datasets.load_dataset`` finds the data by, and tables for people.

    ``form`` is the ending of the data files; None where they are no data set.
    """
    attempts = told["attempts"]
    found = [] if form is None else ["configs:", "- config_name: default", "  data_files:", "  - split: train",
                                     f"    path: data/train-*.{form}"]
    lines = ["---", *found, "tags:", "- agents", "- woodshed", "---", "",
             f"# {told['format']} from {counted(len(told['runs']), 'run')}", "",
             f"Made by Woodshed {told['woodshed']}. {counted(told['rows'], 'row')}, of "
             f"{counted(attempts['finished'], 'finished attempt')} "
             f"at {counted(told['tasks'], 'task')}.", "", "| | |", "|---|---|",
             f"| valid | {attempts['valid']} ({_percent(told['valid_rate'])}) |",
             f"| passed, of the valid | {attempts['passed']} ({_percent(told['pass_rate_of_valid'])}) |",
             *(f"| invalid: {_cell(cause)} | {count} |" for cause, count in attempts["invalid_by_cause"].items()),
             *(f"| total {_cell(total)} | {count} |" for total, count in told["totals"].items()),
             *(f"| licence {_cell(name)} | {counted(count, 'task')} |" for name, count in told["licences"].items()),
             *(f"| left out: {_cell(why)} | {count} |" for why, count in told["dropped"].items()),
             *(f"| task left out: {_cell(task)} | {_cell(why)} |" for task, why in told["dropped_tasks"].items()),
             *(f"| masked: {_cell(kind)} | {count} |" for kind, count in told["secrets_masked"].items())]
    if (tokens := told.get("tokens")) is not None:
        lines += [f"| trainable rollouts | {tokens['trainable']} |",
                  *(f"| untrainable: {_cell(why)} | {count} |" for why, count in tokens["untrainable"].items()),
                  *(f"| prompts that went on: {kind} | {count} |" for kind, count in tokens["drift"].items())]
    lines += [f"| no rows: {_cell(why)} | {count} |" for why, count in told.get("empty", {}).items()]
    warned = (*told.get("selection_warnings", ()), *told["warnings"])
    lines += [f"| warning | {_cell(words, 1000)} |" for words in warned]
    how = json.dumps({key: told[key] for key in ("rules", "filters", "runs")}, indent=1)
    lines += ["", "## Rules and filters", "", "```json", how, "```", ""]
    return "\n".join(lines)


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in sorted(counts.items()) if count}


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.1f} %"


def _cell(text: object, most: int = 200) -> str:
    """Text of anyone's in a table: on one line, and no cell of its own."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")[:most]
