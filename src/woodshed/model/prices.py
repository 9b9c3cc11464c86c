"""PriceBook: what machines, models and storage cost. Money is whole micro-units: 350_000 is 0.35 of the currency."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from woodshed.model.record import Record

ANY_MODEL = "*"
_MOST = 10**15
"""A thousand million of the currency: more is a slip of the pen."""


class WorkerPrice(Record):
    """A worker's machine, held for as long as a run takes."""

    hour_micros: int = Field(ge=0, le=_MOST)


class ModelPrice(Record):
    """What a model costs: by its tokens, or by the hours of the GPUs that serve it, held for as long as a run takes.

    With ``tokens_per_s``, the completion tokens that all its GPUs together make in a second, GPUs cost their working
    time alone.
    """

    prompt_micros_per_million: int | None = Field(default=None, ge=0, le=_MOST)
    completion_micros_per_million: int | None = Field(default=None, ge=0, le=_MOST)
    gpu_hour_micros: int | None = Field(default=None, ge=0, le=_MOST)
    gpus: int = Field(default=1, ge=1, le=100_000)
    tokens_per_s: float | None = Field(default=None, gt=0, le=1e9)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        by_token = self.prompt_micros_per_million is not None or self.completion_micros_per_million is not None
        if by_token == (self.gpu_hour_micros is not None):
            raise ValueError("give prices by million tokens, or gpu_hour_micros, and not both")
        return self


class StoragePrice(Record):
    """What is kept of attempts, for ``kept_days``."""

    gb_month_micros: int = Field(ge=0, le=_MOST)
    kept_days: float = Field(default=30.0, ge=0, le=36_500)


class PriceBook(Record):
    """The file of ``woodshed plan --price-book``. ``model`` is by a model's name; ``*`` is any other's."""

    version: int = Field(default=1, ge=1, le=1)
    currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$")
    worker: WorkerPrice | None = None
    model: dict[str, ModelPrice] = {}
    storage: StoragePrice | None = None

    def of(self, model: str) -> ModelPrice | None:
        """The price of a model's use; None where the book has none."""
        return self.model.get(model) or self.model.get(ANY_MODEL)
