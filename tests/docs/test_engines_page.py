"""The page on engines says what each engine has: its table is what their code declares."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pytest

from woodshed.interfaces import Capability
from woodshed.sandbox.docker.engine import DockerEngine
from woodshed.sandbox.gvisor.engine import GvisorEngine
from woodshed.sandbox.native.engine import NativeEngine

PAGE = Path(__file__).parents[2] / "docs/engines.md"
ENGINES = {"native": NativeEngine, "docker": DockerEngine, "gvisor": GvisorEngine}
ALWAYS = {"pids", "open_files", "wall_s", "output_bytes", "files", "noexec", "privileges"}
"""Names in the table that are limits of every engine or parts of a policy, and no capabilities."""


def table() -> dict[str, dict[str, str]]:
    """What stands in each engine's column, by what the row is called."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines()
            if line.startswith("|") and not line.startswith("|---")]
    names = [cell.strip("`") for cell in rows[0][1:]]
    return {row[0]: dict(zip(names, row[1:], strict=True)) for row in rows[1:]}


def test_every_capability_has_its_row() -> None:
    """Each name that an engine may declare stands in exactly one row."""
    words = [word for row in table() for word in row.split("`")[1::2]]
    assert sorted(word for word in words if word not in ALWAYS) == sorted(get_args(Capability))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_table_says_is_declared(engine: str, tmp_path: Path) -> None:
    """A yes is a capability, a no is none; where it depends on the machine the table says on what."""
    declared = ENGINES[engine](tmp_path).capabilities
    for row, cells in table().items():
        for name in [word for word in row.split("`")[1::2] if word not in ALWAYS]:
            said = cells[engine]
            if said.startswith("as root"):
                assert (name in declared) is (os.geteuid() == 0), name
            elif name == "commands" and said == "yes" and name not in declared:
                pytest.skip("this kernel has no Landlock, which `commands` needs")
            elif "where" not in said:
                assert (name in declared) is said.startswith("yes"), (name, said)
