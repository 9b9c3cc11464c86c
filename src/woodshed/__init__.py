"""Woodshed: the place where open-weight agents practise.

The public Python API. Everything else is reached by its own module and may change.

>>> import woodshed
>>> tasks = woodshed.find_tasks(["examples/tasks/first-steps"])
>>> summary = woodshed.run(tasks, ["oracle", "nop"], attempts=2)   # doctest: +SKIP
>>> summary["agents"][0]["pass_at_1"]                              # doctest: +SKIP
1.0

Sandboxes alone, from asynchronous code: ``async with woodshed.engine() as engine: await engine.create(…)``; see
``docs/sandbox.md``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from woodshed.errors import Cause, UsageError, WoodshedError
from woodshed.interfaces import Sandbox, SandboxEngine
from woodshed.model import (
    Agent,
    AgentLimits,
    EnvironmentSpec,
    Invalid,
    Limits,
    ModelSpec,
    Sampling,
    SandboxPolicy,
    Task,
    Valid,
)
from woodshed.version import __version__ as __version__  # for whoever asks, no name of the API

__all__ = [
    "Agent",
    "AgentLimits",
    "Cause",
    "EnvironmentSpec",
    "Invalid",
    "Limits",
    "ModelSpec",
    "Sampling",
    "Sandbox",
    "SandboxEngine",
    "SandboxPolicy",
    "Task",
    "UsageError",
    "Valid",
    "WoodshedError",
    "engine",
    "find_tasks",
    "groups",
    "run",
]


@asynccontextmanager
async def engine(name: str | None = None, *, home: Path | None = None) -> AsyncIterator[SandboxEngine]:
    """A sandbox engine (default: the settings'), with every sandbox it made ended afterwards. Raises UsageError."""
    from woodshed import plugins, settings

    made = plugins.engine(name or settings.setting("engine"), home or settings.home())
    try:
        yield made
    finally:
        await made.close()


def find_tasks(paths: Sequence[str | Path]) -> list[Task]:
    """The tasks of ``paths``, each a task folder or a tree of them. Raises UsageError naming file, field and remedy."""
    from woodshed.tasks.load import find_tasks as find

    return find([Path(path) for path in paths])


def run(
    tasks: Sequence[Task | str | Path],
    agents: Sequence[Agent | str],
    *,
    attempts: int = 1,
    concurrency: int = 2,
    seed: int = 0,
    home: Path | None = None,
    rules: Path | None = None,
) -> dict[str, Any]:
    """Attempt every task ``attempts`` times with every agent; the summary that ``woodshed run --json`` prints.

    Blocks; not for use inside a running event loop. A name in ``agents`` means the harness of that name; one that needs
    a model takes an :class:`Agent`. ``home`` is the state folder (default: the settings'), ``rules`` a file of
    reward rules. Tasks in quarantine are left out; the logger ``woodshed`` is told. Raises UsageError.
    """
    import asyncio
    import logging

    from woodshed import settings
    from woodshed.services import agents as builder
    from woodshed.services import report, rulesets, runs
    from woodshed.services.home import opened

    chosen = [agent if isinstance(agent, Agent) else builder.build([agent], None)[0] for agent in agents]
    folders = [task.folder if isinstance(task, Task) else task for task in tasks]
    with opened(home) as place:
        spec, found = runs.plan(
            folders, chosen, attempts=attempts, concurrency=concurrency, seed=seed, engine=settings.setting("engine"),
            rules=rulesets.load(rules) if rules else None, tell=logging.getLogger("woodshed").warning,
        )
        finished = asyncio.run(runs.start(place, spec, found, lambda tally: None))
        return report.summary(place, finished)


def groups(
    run: str, consumer: str = "python", *, lease_s: float = 600.0, home: Path | None = None
) -> Iterator[dict[str, Any]]:
    """The groups of a run (all attempts of a task by an agent) as they complete; ends when none will any more.

    Each is a row as ``woodshed groups --json`` has it, with its ``rewards``; several consumers share them. Asking for
    the next one acknowledges the one before; who does not ask within ``lease_s`` leaves it to another. Blocks; not for
    use inside a running event loop. ``home`` as in :func:`run`. Raises UsageError for a run that there is not.
    """
    import asyncio

    from woodshed.services import groups as service
    from woodshed.services.home import opened

    with opened(home) as place:
        over = False
        while not over:
            found = asyncio.run(service.next_group(place, run, consumer, lease_s=lease_s))
            for one in found.groups:
                yield one.told()
                service.ack(place, one.group)
            over = found.over
