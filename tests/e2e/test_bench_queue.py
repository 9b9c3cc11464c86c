"""The measurements of queues run, small, and tell what they should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kit import woodshed


@pytest.mark.slow
def test_what_leaving_attempts_to_workers_costs_is_told(tmp_path: Path) -> None:
    """Rate, CPU and memory on SQLite, with where the figures come from."""
    done = woodshed("bench", "queue", "-n", "40", "--rounds", "1", "--queued", "100", "--database", "sqlite", "--json",
                    home=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    row = figures["databases"]["sqlite"]
    assert row["per_s"] > 0
    assert row["queued"]["worker_mb"] > 0
    assert {"commit", "machine", "seed", "samples"} <= figures.keys()


@pytest.mark.slow
def test_a_small_thousand_is_accounted_for(tmp_path: Path) -> None:
    """Amid refusals, hangs and a killed worker every attempt has its result, none is falsely zero, nothing is left."""
    done = woodshed("bench", "thousand", "--tasks", "4", "-n", "3", "--kills", "1", "--faults", "0.1", "--json",
                    home=tmp_path, timeout=1800)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["attempts"], figures["accounted"], figures["false_zeros"], figures["left"]) == (24, 24, 0, [])
    assert figures["killed_workers"] == 1
    assert figures["groups_complete"] == figures["groups"] == 8
