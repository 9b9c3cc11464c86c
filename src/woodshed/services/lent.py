"""The secrets that runs were lent, by the names of their variables and files, so that no export lets them out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from woodshed import settings
from woodshed.model import Run
from woodshed.model.network import NetworkPolicy

MAX_BYTES = 65_536


def lent(runs: Iterable[Run]) -> tuple[dict[str, str], list[str]]:
    """Values by name, as they are now; and the names of those that cannot be read any more, in order."""
    variables = {name.strip() for name in (settings.setting("task_env") or "").split(",") if name.strip()}
    files: set[str] = set()
    for run in runs:
        if run.spec.person is not None and run.spec.person.key_variable is not None:
            variables.add(run.spec.person.key_variable)
        for agent in run.spec.agents:
            if agent.model is not None and agent.model.key_variable is not None:
                variables.add(agent.model.key_variable)
            _of_network(agent.policy.network, variables, files)
    values = {name: os.environ[name] for name in sorted(variables) if os.environ.get(name)}
    missing = sorted(variables - values.keys())
    for file in sorted(files):
        try:
            with Path(file).open("rb") as opened:
                values[Path(file).name] = opened.read(MAX_BYTES).decode("utf-8", "surrogateescape").strip()
        except OSError:
            missing.append(file)
    return values, missing


def _of_network(network: NetworkPolicy, variables: set[str], files: set[str]) -> None:
    for rule in network.rules:
        for secret in rule.secrets:
            variable, file = secret.source
            if variable is not None:
                variables.add(variable)
            if file is not None:
                files.add(file)
