"""Pure functions over records: pass@k, intervals, process measures."""
