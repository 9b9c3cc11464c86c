"""A real open-weight model on this machine: known weights, fetched, served and ended by us (``woodshed[local]``).

``catalog`` names the weights, ``fetch`` brings them (``hub`` downloads), ``choose`` finds what a reference means,
``header`` and ``template`` mend how tool calls are written, ``child`` is the server process, ``serve`` starts and ends
it. Importing this loads no model runtime.
"""

from woodshed.gateway.local.catalog import CATALOG, DEFAULT, KnownModel, Source, announcement, known
from woodshed.gateway.local.choose import LocalModel, resolve, weights
from woodshed.gateway.local.fetch import Installed, find, installed, pull
from woodshed.gateway.local.serve import KEY_VARIABLE, LocalServer

__all__ = [
    "CATALOG",
    "DEFAULT",
    "KEY_VARIABLE",
    "Installed",
    "KnownModel",
    "LocalModel",
    "LocalServer",
    "Source",
    "announcement",
    "find",
    "installed",
    "known",
    "pull",
    "resolve",
    "weights",
]
