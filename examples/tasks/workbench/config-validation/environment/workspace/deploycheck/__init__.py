"""Check deployment files."""

from deploycheck.check import Problem, validate

__all__ = ["Problem", "validate"]
