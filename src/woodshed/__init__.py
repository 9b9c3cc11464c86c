"""Woodshed: the place where open-weight agents practise."""

__version__ = "0.1.0.dev0"
