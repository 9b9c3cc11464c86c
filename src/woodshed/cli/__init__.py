"""The command line: the composition root. ``main`` is the console script."""

from __future__ import annotations

import gc

_YOUNG = 50_000
"""New objects between two collections of the youngest (default: 700). Imports make many that stay, which every
collection looks through in vain: a seventh of the CPU that starting takes."""


def main() -> None:
    """Run the command line; see :func:`woodshed.cli.app.main`."""
    gc.set_threshold(_YOUNG, 20, 100)
    from woodshed.cli.app import main as run

    run()
