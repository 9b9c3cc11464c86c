"""Judging captured changes in a fresh sandbox."""
