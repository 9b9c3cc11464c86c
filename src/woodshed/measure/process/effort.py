"""Effort: what an attempt took. Counts that are not judged by themselves. Pure."""

from __future__ import annotations

from woodshed.measure.process.facts import Facts
from woodshed.model.process import Dimension, Measure


def measured(facts: Facts) -> list[Measure]:
    """``commands``, ``tokens``, ``cost``."""
    tokens = facts.usage.prompt_tokens + facts.usage.completion_tokens
    return [
        Measure(name="commands", dimension=Dimension.EFFORT, unit="calls", value=float(len(facts.calls)),
                why=f"{sum(made.edits for made in facts.calls)} may edit, "
                    f"{sum(made.checks for made in facts.calls)} check"),
        Measure(name="tokens", dimension=Dimension.EFFORT, unit="tokens", value=float(tokens),
                why=f"{facts.usage.prompt_tokens} read, {facts.usage.completion_tokens} written"),
        Measure(name="cost", dimension=Dimension.EFFORT, unit="micros",
                value=None if facts.micros is None else float(facts.micros),
                why="no price is known for it" if facts.micros is None else "by the price book"),
    ]
