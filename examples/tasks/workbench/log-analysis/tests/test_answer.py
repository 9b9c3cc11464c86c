"""The figures in answer.json are those of the log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def answer() -> dict[str, Any]:
    loaded = json.loads(Path("/workspace/answer.json").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def test_valid_and_malformed_lines() -> None:
    """Cut, doubled and foreign lines are malformed; empty lines are none."""
    assert (answer()["valid_lines"], answer()["malformed_lines"]) == (1113, 67)


def test_clients() -> None:
    """Two spellings of one IPv6 address are one client."""
    assert answer()["clients"] == 63


def test_bytes_sent() -> None:
    """A dash is no bytes; malformed lines add nothing."""
    assert answer()["bytes_sent"] == 47_866_786


def test_busiest_hour() -> None:
    """Hours are told apart in UTC, although the host's clock was set back that night."""
    assert answer()["busiest_hour"] == "2026-10-25T00:00:00Z"
    assert answer()["busiest_hour_requests"] == 314


def test_top_server_errors() -> None:
    """Paths without their queries, most errors first."""
    assert answer()["top_server_errors"] == [
        {"path": "/api/search", "count": 23},
        {"path": "/static/app.css", "count": 15},
        {"path": "/api/orders", "count": 13},
    ]


def test_api_p95() -> None:
    """The nearest rank, health checks left out."""
    assert answer()["api_p95_ms"] == 323


def test_only_the_figures_asked_for() -> None:
    """No key is missing and none is added."""
    figures = {"valid_lines", "malformed_lines", "clients", "bytes_sent", "busiest_hour", "busiest_hour_requests"}
    assert set(answer()) == figures | {"top_server_errors", "api_p95_ms"}
