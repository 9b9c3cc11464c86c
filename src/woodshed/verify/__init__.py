"""Judging captured changes in a fresh sandbox."""

JUDGING = 1
"""Counted up by whoever changes what a verdict may come to: calibrations made by an older one are no longer current."""
