"""``woodshed bench sandbox --egress``: what a network costs, with few sandboxes and, slowly, with five hundred."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kit import woodshed
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.services.benching import egress, figures


async def test_every_figure_of_egress_is_there(shed_home: Path) -> None:
    """Create with and without, requests both ways, and the many, each of which got all its bytes."""
    engine = NativeEngine(shed_home)
    try:
        found = await egress.measure(engine, samples=5, many=3, piece_bytes=300_000)
    finally:
        await engine.close()
    cells = [*found["create_ms"].values(), *found["request_ms"].values()]
    assert (found["create_ms"].keys(), found["request_ms"].keys()) == ({"with", "without"}, {"proxy", "direct"})
    assert all(0 < cell["p50"] <= cell["p95"] and cell["n"] == 5 for cell in cells)
    assert found["many"]["n"] == 3
    assert found["many"]["process_mb"] > found["many"]["grown_mb"]


def test_the_command_tells_them(shed_home: Path) -> None:
    """The flag adds the figures and two targets, and without it neither is there."""
    done = woodshed("bench", "sandbox", "--samples", "1", "--idle", "2", "--churn", "0", "--patience", "0",
                    "--yardstick", "raw", "--egress", "--json", home=shed_home)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["egress"]["many"]["n"] == 2
    names = {row["name"] for row in told["targets"]}
    assert {"egress_create_added_ms", "egress_process_mb"} <= names
    assert "egress" not in {row["name"].split("_")[0] for row in figures.targets({}, figures.ratios({}, "native"))}


@pytest.mark.slow
async def test_five_hundred_fetch_at_once_in_little_memory(shed_home: Path) -> None:
    """While five hundred sandboxes have a megabyte under way each, what they need of this process stays small."""
    engine = NativeEngine(shed_home)
    try:
        found = await egress.measure(engine, samples=5, many=500)
    finally:
        await engine.close()
    assert found["many"]["grown_mb"] < 100
