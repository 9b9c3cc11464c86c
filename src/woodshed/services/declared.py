"""What a user declared beside a command: TOML files of policies, reward rules and retry rules, and deadlines."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from woodshed import given
from woodshed.errors import UsageError
from woodshed.model import Deadlines
from woodshed.model.retry import RetryRules
from woodshed.services.durations import seconds

MAX_BYTES = 1_000_000


def read_toml(file: Path, page: str) -> dict[str, Any]:
    """The tables of ``file``; ``page`` is the page of the docs that shows one. Raises UsageError naming the remedy."""
    text = given.text(file, MAX_BYTES, remedy=f"Is this the right file? {page} shows an example.")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"broken TOML: {error or 'nested too deep'}", file=file,
                         remedy=f"Mend the line it names; {page} shows an example.") from None


def load_retry(file: Path) -> RetryRules:
    """The retry rules of a file: ``[[retry]]`` tables, budgets, a ``[breaker]``. Raises UsageError.

    ``breaker = false`` says that the run is never paused.
    """
    tables = read_toml(file, "docs/retries.md")
    if tables.get("breaker") is False:
        tables["breaker"] = None
    return RetryRules.parse(tables, file=file)


def deadlines(stages: Sequence[str], run: str | None) -> Deadlines:
    """The deadlines that ``STAGE=DURATION`` pairs and a run's duration declare. Raises UsageError naming the remedy."""
    known = [name.removesuffix("_s") for name in Deadlines.model_fields if name != "run_s"]
    said: dict[str, float] = {}
    for pair in stages:
        stage, equals, duration = pair.partition("=")
        if not equals or stage not in known:
            raise UsageError(f"'{pair}' is no deadline of a stage", field="--deadline",
                             remedy=f"Say STAGE=DURATION, as in verify=600s; stages are {', '.join(known)}.")
        said[f"{stage}_s"] = seconds(duration, "--deadline")
    if run is not None:
        said["run_s"] = seconds(run, "--run-deadline")
    return Deadlines(**said)
