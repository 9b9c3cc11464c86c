"""From samples to what is published: figures by engine, ratios, and whether the targets are met."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woodshed.services.benching.subject import CREATE, EXEC, FORK, SNAPSHOT, WARM

Engines = Mapping[str, Mapping[str, Any]]

YARDSTICKS = ("raw", "bwrap", "crun", "runc", "podman")


def ratios(engines: Engines, own: str) -> dict[str, float | None]:
    """Medians of ``own`` over the yardsticks' and over its own; None where a part of it was not measured.

    ``create_over_X`` compares create→true→destroy, ``exec_over_X`` one more command in a live sandbox.
    """
    found: dict[str, float | None] = {}
    for other in YARDSTICKS:
        suffix = "podman_run" if other == "podman" else other
        found[f"create_over_{suffix}"] = _over(engines, (own, CREATE), (other, CREATE))
        if other not in ("raw", "bwrap"):
            suffix = "podman_exec" if other == "podman" else other
            found[f"exec_over_{suffix}"] = _over(engines, (own, EXEC), (other, EXEC))
    found["warm_over_raw"] = _over(engines, (own, WARM), ("raw", CREATE))
    found["fork_over_create"] = _over(engines, (own, FORK), (own, CREATE))
    return found


def _over(engines: Engines, above: tuple[str, str], below: tuple[str, str]) -> float | None:
    first, second = (engines.get(name, {}).get(measure) for name, measure in (above, below))
    return round(first["p50"] / second["p50"], 4) if first and second else None


def targets(
    own: Mapping[str, Any], found: Mapping[str, float | None], egress: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Each target with its value and ``met``: None where it was not measured. Those of ``egress`` only with it."""
    exec_ms, snapshot_ms = _p50(own, EXEC), _p50(own, SNAPSHOT)
    rows = [
        _at_most("create_over_raw", found["create_over_raw"], 4.5),
        _at_most("create_over_podman_run", found["create_over_podman_run"], 0.1),
        _at_most("exec_ms", exec_ms, 2.5),
        _at_most("exec_over_podman_exec", found["exec_over_podman_exec"], round(1 / 30, 4)),
        _at_most("warm_over_raw", found["warm_over_raw"], 2.0),
        _at_most("snapshot_ms", snapshot_ms, 5.0),
        _at_most("fork_over_create", found["fork_over_create"], 1.2),
        _at_most("idle_mb", own.get("idle_mb"), 3.0),
        _at_least("churn_per_s", own.get("churn_per_s"), 80.0),
    ]
    first, second = (row for row in rows if row["name"].startswith("exec"))
    first["or"], second["or"] = second["name"], first["name"]  # one of the two is enough
    if first["met"] or second["met"]:
        first["met"] = second["met"] = True
    if egress is not None:
        rows.append(_at_most("egress_create_added_ms", egress["added_ms"]["create"], 2.0))
        rows.append(_at_most("egress_process_mb", (egress["many"] or {}).get("process_mb"), 200.0))
    return rows


def _p50(own: Mapping[str, Any], measure: str) -> float | None:
    figures = own.get(measure)
    return None if figures is None else float(figures["p50"])


def _at_most(name: str, value: float | None, bound: float) -> dict[str, Any]:
    return {"name": name, "value": value, "at_most": bound, "met": None if value is None else value <= bound}


def _at_least(name: str, value: float | None, bound: float) -> dict[str, Any]:
    return {"name": name, "value": value, "at_least": bound, "met": None if value is None else value >= bound}
