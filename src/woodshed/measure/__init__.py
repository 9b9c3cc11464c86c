"""Pure functions over records: pass@k, intervals, the closing table, trajectories, process measures."""

from woodshed.measure.figures import Figures, by_agent, summary
from woodshed.measure.rates import interval_of_tasks, mean_of_tasks, pass_at_k, wilson

__all__ = ["Figures", "by_agent", "interval_of_tasks", "mean_of_tasks", "pass_at_k", "summary", "wilson"]
