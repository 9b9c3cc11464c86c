"""Shared by all tests: a state folder of their own, and the sandbox engine on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from nobody import NOBODY
from woodshed.model import EnvironmentSpec
from woodshed.sandbox.images import Images

# No deadline: a busy machine is no defect. On CI the same examples each time, so that a red run can be repeated; at
# home new ones each time, which is where they find something.
settings.register_profile("home", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "home")


@pytest.fixture(scope="session")
def shed_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder shared by the session, so that images and layers are made once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def new_home(shed_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes state folders in which nothing ever ran, but for the layer of test tools: it takes a while to make."""
    Images(shed_home).prepare(EnvironmentSpec())

    def made() -> Path:
        home = tmp_path_factory.mktemp("new-home")
        (home / "layers").mkdir(mode=0o700)
        for path in (*shed_home.glob("layers/[0-9a-f]*"), shed_home / "layers" / ".notes"):
            subprocess.run(["cp", "-al", path, home / "layers"], check=True)
        return home

    return made


@pytest.fixture(scope="module")
def images(shed_home: Path) -> Images:
    """Images of the session's state folder."""
    return Images(shed_home)


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, shed_home: Path) -> Iterator[None]:
    """No test touches the user's own state folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WOODSHED_HOME", str(shed_home))
        for name in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS"):  # what `make test` tells its children
            patch.delenv(name, raising=False)
        yield


@pytest.fixture
def nobodys_folder() -> Iterator[Path]:
    """A folder of nobody's own: pytest's belong to root alone."""
    path = Path(tempfile.mkdtemp(prefix="woodshed-nobody-"))
    os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path, ignore_errors=True)
