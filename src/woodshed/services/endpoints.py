"""Endpoints: every model that the agents of a run name is reachable, ours served for as long as the run lasts."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from woodshed.errors import UsageError
from woodshed.gateway.local import LocalServer
from woodshed.gateway.reach import reachable
from woodshed.model import Agent, ModelSpec
from woodshed.services.agents import LOCAL


class Endpoints:
    """Live endpoints. A ``local:`` model is served by us, once, however many agents use it."""

    def __init__(self, home: Path, agents: Iterable[Agent], *, parallel: int) -> None:
        self._home, self._parallel = home, parallel
        self._models = {agent.model.base_url: agent.model for agent in agents if agent.model}
        self._live: dict[str, Served] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            for url, model in self._models.items():
                self._live[url] = await self._open(model)
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
        if agent.model is None:
            return agent
        live = self._live[agent.model.base_url]
        model = live.model.model_copy(update={"sampling": agent.model.sampling})
        dialect = live.dialect if agent.dialect == "auto" else agent.dialect
        return agent.model_copy(update={"model": model, "dialect": dialect})

    async def _open(self, model: ModelSpec) -> Served:
        if model.base_url.startswith(LOCAL):
            server = LocalServer(model.base_url.removeprefix(LOCAL), self._home, parallel=self._parallel)
            await self._stack.enter_async_context(server)
            return Served(server.spec(model.sampling), server.model.dialect)
        if not await reachable(model):
            raise UsageError(
                f"no model answers at {model.base_url}",
                field="--model",
                remedy="Start the server, or mend the address.",
            )
        return Served(model, "auto")


@dataclass(frozen=True, slots=True)
class Served:
    """A model that answers now, and how it writes tool calls."""

    model: ModelSpec
    dialect: str
