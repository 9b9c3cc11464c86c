"""The command line: the composition root. ``main`` is the console script."""

from woodshed.cli.app import main

__all__ = ["main"]
