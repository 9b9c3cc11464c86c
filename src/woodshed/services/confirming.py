"""The least proof of a task: its reference passes and doing nothing fails, both as real attempts, nothing recorded."""

from __future__ import annotations

from woodshed import plugins
from woodshed.attempt import Parts, run_attempt
from woodshed.interfaces import SandboxEngine
from woodshed.model import Agent, Invalid, Task
from woodshed.services.home import Home


async def confirm(task: Task, home: Home, engine: SandboxEngine) -> str | None:
    """What is wrong with ``task``, None where nothing is."""
    for name in ("oracle", "nop"):
        parts = Parts(engine=engine, harness=plugins.harness(name), verifier=plugins.verifier(), model=None,
                      blobs=home.blobs, emit=lambda kind, data: None)
        verdict = (await run_attempt(task, Agent(name=name, harness=name), parts, seed=0)).verdict
        if isinstance(verdict, Invalid) or verdict.passed != (name == "oracle"):
            what = "doing nothing passes" if name == "nop" else "its reference fails"
            return f"{what}: {verdict.detail}"[:300]
    return None


async def confirmed(task: Task, home: Home, engine: str) -> str | None:
    """:func:`confirm` with an engine of its own, by name."""
    made = plugins.engine(engine, home.path)
    try:
        return await confirm(task, home, made)
    finally:
        await made.close()
