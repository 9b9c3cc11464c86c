"""Calibration: what is to be believed of a task, found out by attempts at it, and signed off beside it."""
