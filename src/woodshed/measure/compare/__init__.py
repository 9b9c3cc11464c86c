"""Comparison of agents on the same tasks: paired, exact where it can be, and honest about noise. docs/compare.md."""

from woodshed.measure.compare.contest import Contest, Drop, Pair, Score, Side, Try, contest, least_tasks
from woodshed.measure.compare.exact import clopper_pearson, holm, same_on_these, sign_flip, sign_test
from woodshed.measure.compare.grid import Effect, Grid, grid
from woodshed.measure.compare.power import Needed, Spread, needed, spread
from woodshed.measure.compare.resample import interval

__all__ = ["Contest", "Drop", "Effect", "Grid", "Needed", "Pair", "Score", "Side", "Spread", "Try", "clopper_pearson",
           "contest", "grid", "holm", "interval", "least_tasks", "needed", "same_on_these", "sign_flip",
           "sign_test", "spread"]
