"""Reward rules applied: evidence in, a grade out. Pure; what is measured for them is made by patch.py and checks.py.

Each rule is one function of (rule, evidence) to a :class:`Score`. No score falls for what an agent read or checked.
None is for what the agent has no hand in: whatever it brings about has a number, so that it cannot escape one.
"""

from woodshed.verify.rules.evidence import Evidence, Score
from woodshed.verify.rules.grade import Plugin, graded, total_of

__all__ = ["Evidence", "Plugin", "Score", "graded", "total_of"]
