"""Costs: what a run takes, by the prices of a book. Pure; money is whole micro-units, rounded half up once a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from woodshed.model.prices import ModelPrice, PriceBook

MONTH_DAYS = 30.0


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a model is asked and answers in a whole run."""

    prompt: int = 0
    completion: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """One position: so much of something, for ``micros`` in all."""

    what: str
    quantity: float
    unit: str
    micros: int


def bill(
    book: PriceBook, *, makespan_s: float, workers: int, tokens: Mapping[str, Tokens], kept_gb: float
) -> list[Line]:
    """The lines of a run: workers held for ``makespan_s``, models by name, and what is kept of its attempts.

    A model without a price has no line; what the book does not price costs nothing.
    """
    lines = []
    if book.worker is not None:
        hours = workers * makespan_s / 3600
        lines.append(Line("workers", hours, "hours", _round(hours * book.worker.hour_micros)))
    for name, used in tokens.items():
        if (price := book.of(name)) is not None:
            lines += _model(name, price, used, makespan_s)
    if book.storage is not None:
        months = book.storage.kept_days / MONTH_DAYS
        lines.append(Line("storage", kept_gb * months, "GB-months",
                          _round(kept_gb * months * book.storage.gb_month_micros)))
    return lines


def asked(book: PriceBook, model: str, used: Tokens, seconds: float) -> int | None:
    """Micro-units of a model's answers alone, which took ``seconds``; None where the book has no price of it."""
    price = book.of(model)
    return None if price is None else total(_model(model, price, used, seconds))


def total(lines: list[Line]) -> int:
    """Micro-units of all lines."""
    return sum(line.micros for line in lines)


def _model(name: str, price: ModelPrice, used: Tokens, makespan_s: float) -> list[Line]:
    if price.gpu_hour_micros is not None:
        seconds = used.completion / price.tokens_per_s if price.tokens_per_s else makespan_s
        hours = price.gpus * seconds / 3600
        return [Line(f"{name}: GPUs", hours, "hours", _round(hours * price.gpu_hour_micros))]
    parts = (("prompt", used.prompt, price.prompt_micros_per_million),
             ("completion", used.completion, price.completion_micros_per_million))
    return [Line(f"{name}: {what}", float(count), "tokens", (count * micros + 500_000) // 1_000_000)
            for what, count, micros in parts if micros is not None]


def _round(micros: float) -> int:
    return int(micros + 0.5)
