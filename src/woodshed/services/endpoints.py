"""Endpoints: every model that the agents of a run name is reachable, ours served for as long as the run lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from woodshed.errors import ModelFault, UsageError
from woodshed.gateway.local import LocalServer
from woodshed.gateway.reach import reachable
from woodshed.model import Agent, ModelSpec
from woodshed.model.rollout import WORST, CaptureLevel
from woodshed.services.agents import LOCAL

if TYPE_CHECKING:
    from woodshed.gateway.capture.probe import Capturing
    from woodshed.gateway.client import Gateway

_OURS = ("sampling", "capture", "capture_least", "vocabulary", "reasoning", "policy_version")
"""What an agent says of a model that we serve; the rest is the server's."""


class Endpoints:
    """Live endpoints. A ``local:`` model is served by us, once, however many agents use it."""

    def __init__(
        self, home: Path, agents: Iterable[Agent], *, parallel: int, person: ModelSpec | None = None
    ) -> None:
        self._home, self._parallel = home, parallel
        self._models = [(agent.model, "--model") for agent in agents if agent.model]
        self._models += [(person, "--person")] if person else []
        self._served: dict[str, Served] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            for model, field in self._models:
                await self._open(model, field)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def bound(self, agent: Agent) -> Agent:
        """The agent with its model's live address, and the dialect that model speaks unless one was asked for."""
        if agent.model is None or (live := self._served.get(agent.model.base_url)) is None:
            return agent
        dialect = live.dialect if agent.dialect == "auto" else agent.dialect
        return agent.model_copy(update={"model": self.at(agent.model), "dialect": dialect})

    def at(self, model: ModelSpec) -> ModelSpec:
        """The model with its live address."""
        if (live := self._served.get(model.base_url)) is None:
            return model
        return live.model.model_copy(update={name: getattr(model, name) for name in _OURS})

    async def _open(self, model: ModelSpec, field: str) -> None:
        if model.base_url in self._served:
            return
        if model.base_url.startswith(LOCAL):
            server = LocalServer(model.base_url.removeprefix(LOCAL), self._home, parallel=self._parallel)
            await self._stack.enter_async_context(server)
            self._served[model.base_url] = Served(server.spec(model.sampling), server.model.dialect)
        elif not any(await asyncio.gather(*(reachable(model.at(url)) for url in model.addresses))):
            raise UsageError(
                f"no model answers at {' or '.join(model.addresses)}",
                field=field,
                remedy="Start the server, or mend the address.",
            )


@dataclass(frozen=True, slots=True)
class Served:
    """A model that answers now, and how it writes tool calls."""

    model: ModelSpec
    dialect: str


async def captured(gateway: Gateway, models: Iterable[ModelSpec]) -> Sequence[str]:
    """What the endpoints of those that are to be captured tell of tokens: a sentence each, for people.

    Raises UsageError where one tells less than its run demands, or nobody could find out.
    """
    told: dict[str, None] = {}
    for model in {(model.name, model.addresses, model.capture): model for model in models if model.captures}.values():
        found = await gateway.probe(model)
        told |= dict.fromkeys(_sentence(model, url, one) for url, one in found.items())
        _demand(model, found)
    return list(told)


def _sentence(model: ModelSpec, url: str, found: Capturing | ModelFault) -> str:
    if isinstance(found, ModelFault):
        return f"{model.name} at {url}: what it tells of tokens could not be found out yet ({found})"
    level = f"capture {found.found.value} ({found.name})"
    if found.found is CaptureLevel.TEXT:
        level += ": it tells no token ids that could be relied upon; for evaluation and SFT"
    return f"{model.name} at {url}: {level}"


def _demand(model: ModelSpec, found: Mapping[str, Capturing | ModelFault]) -> None:
    if (least := model.capture_least) is None:
        return
    for url, one in found.items():
        if isinstance(one, ModelFault) or WORST.index(one.found) > WORST.index(least):
            what = str(one) if isinstance(one, ModelFault) else f"it tells {one.found.value} ({one.name})"
            raise UsageError(f"{model.name} at {url} does not give {least.value}: {what}", field="--require-capture",
                             remedy="See docs/gateway.md for servers and the flags they need, or ask for less.")
