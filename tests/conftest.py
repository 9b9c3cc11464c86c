"""Shared by all tests: a state folder of their own, and the sandbox engine on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shed_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder shared by the session, so that images and layers are made once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, shed_home: Path) -> Iterator[None]:
    """No test touches the user's own state folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WOODSHED_HOME", str(shed_home))
        for name in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS"):  # what `make test` tells its children
            patch.delenv(name, raising=False)
        yield
