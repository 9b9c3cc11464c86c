"""The version of Woodshed, in one place: the package's metadata and every stamp are made of it."""

__version__ = "0.1.0.dev0"
