"""The beginning of PID 1: found by its folder alone, before there are packages."""

from __future__ import annotations

import sys


def parents(top: str) -> None:
    """Parents of the packages below ``top`` are stand-ins: the real ones would load all of Woodshed into every box."""
    for name, path in (("woodshed", "/nowhere"), ("woodshed.sandbox", "/nowhere"),
                       ("woodshed.sandbox.native", f"{top}/native"), ("woodshed.sandbox.remote", f"{top}/remote")):
        package = sys.modules[name] = type(sys)(name)
        package.__path__ = [path]


def main(top: str) -> None:
    """Serve standard input and output. Never returns."""
    parents(top)
    from woodshed.sandbox.remote.inside.serve import serve

    serve()
