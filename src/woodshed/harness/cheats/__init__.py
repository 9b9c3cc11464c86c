"""Attacks on verifiers, each an agent ``cheat:NAME``: the suite by which a task's verdicts are tried."""

from woodshed.harness.cheats.cheat import Cheat, Need, Surface, holds, reached
from woodshed.harness.cheats.player import Cheating
from woodshed.harness.cheats.suite import CHEATS, fitting, named

__all__ = ["CHEATS", "Cheat", "Cheating", "Need", "Surface", "fitting", "holds", "named", "reached"]
