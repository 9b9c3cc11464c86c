"""Told: a comparison as one JSON object, with sentences for people."""

from __future__ import annotations

from typing import Any

from woodshed.measure.compare import Contest, Pair, contest, grid, least_tasks
from woodshed.model.counted import counted
from woodshed.services.comparing.gather import Gathered

LOW_VALID_RATE = 0.95
"""Below it, what broke may have chosen which attempts are compared."""


def told(found: Gathered, *, alpha: float = 0.05, power: float = 0.8, seed: int = 0) -> dict[str, Any]:
    """``{"runs", "alpha", "power", "agents", "pairs", "tasks", "grid", "warnings", "left_out", "currency"}``.

    Each pair has ``says``: what it comes to, in a sentence or two; ``same`` is the factor that both share, if any.
    """
    made = contest(found.tries, alpha=alpha, power=power, seed=seed)
    table = grid(found.agents, made.rates, alpha=alpha, seed=seed)
    return {
        "runs": [run.id for run in found.runs], "alpha": alpha, "power": power, "currency": found.currency,
        "agents": [_agent(side.to_json(), found) for side in made.sides],
        "pairs": [{**pair.to_json(), "same": _same(pair, found), "says": says(pair, power, _least(made))}
                  for pair in made.pairs],
        "tasks": [{"task": task, "rates": row} for task, row in made.rates.items()],
        "grid": table.to_json() if table is not None else None,
        "warnings": _warnings(made),
        "left_out": found.left_out,
    }


def _agent(side: dict[str, Any], found: Gathered) -> dict[str, Any]:
    harness, model = found.agents[side["agent"]]
    card = found.cards.get(side["agent"])
    return {
        **side, "harness": harness, "model": model or None, "claims": card.to_json()["claims"] if card else {},
        "tokens_per_success": card.tokens_per_success if card else None,
        "micros_per_success": card.micros_per_success if card else None,
    }


def _same(pair: Pair, found: Gathered) -> str | None:
    (harness, model), (other, another) = found.agents[pair.a], found.agents[pair.b]
    if harness == other and model != another:
        return "harness"
    return "model" if model and model == another and harness != other else None


def _least(made: Contest) -> int:
    return least_tasks(made.alpha / max(1, len(made.pairs)))


def says(pair: Pair, power: float, least: int) -> str:
    """What a pair comes to, for people."""
    if pair.difference is None:
        return f"{pair.a} and {pair.b} have no valid attempt of the same task in common."
    size, interval = abs(100 * pair.difference), _interval(pair)
    if pair.decided != "noise":
        better, worse = (pair.a, pair.b) if pair.decided == "a" else (pair.b, pair.a)
        return f"{better} passes {size:.1f} points more than {worse}{interval} (p = {pair.p_adjusted:.2g})."
    if pair.difference and pair.wins + pair.losses < least:
        return f"{pair.a} and {pair.b} differ by {100 * pair.difference:+.1f} points{interval}, at " \
               f"{counted(pair.wins + pair.losses, 'task')}: too few to decide, however large it is. " \
               f"{_more(pair, power)}"
    told = f"No difference between {pair.a} and {pair.b} is shown: {100 * pair.difference:+.1f} points{interval}" \
           f" (p = {pair.p_adjusted:.2g}) is noise."
    return f"{told} {_more(pair, power)}"


def _interval(pair: Pair) -> str:
    if pair.low is None or pair.high is None:
        return ""
    low, high = (pair.low, pair.high) if pair.decided != "b" else (-pair.high, -pair.low)
    return f", interval {100 * low:.1f} to {100 * high:.1f}"


def _more(pair: Pair, power: float) -> str:
    """What would decide it."""
    if not pair.difference:
        least = f"; what was run would mostly show one of {100 * pair.detectable:.0f} points" if pair.detectable else ""
        return f"There is none to decide{least}."
    ways = []
    if pair.more_attempts is not None:
        more = counted(pair.more_attempts, "more attempt")
        ways.append(f"{more} of each task by each agent ({pair.more_in_all} in all)")
    if pair.more_tasks is not None:
        ways.append(f"{counted(pair.more_tasks, 'more task')} like these")
    if not ways:
        return "No affordable number of attempts decides one so small."
    return f"To decide one of this size with a power of {100 * power:.0f} %: about {', or '.join(ways)}."


def _warnings(made: Contest) -> list[str]:
    found = [f"{side.agent}: only {100 * side.valid_rate:.0f} % of its attempts are valid; what broke may have chosen "
             "which are compared" for side in made.sides if side.valid_rate < LOW_VALID_RATE]
    dropped = [len(pair.dropped) for pair in made.pairs if pair.dropped]
    if dropped:
        most = f"{max(dropped)}" if len(made.pairs) == 1 else f"Up to {max(dropped)}"
        found.append(f"{most} pairs of attempts are left out of a comparison, as one or both are invalid or missing")
    return found
