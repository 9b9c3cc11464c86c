"""verifiers: a taskset over Woodshed's tasks, and the harness that acts them, for a module of your own to export.

Held against verifiers 0.4, whose plug-ins are top-level modules: ``woodshed_tasks.py`` with the line
``from woodshed.trainers.verifiers_environment import *`` is the taskset and the harness ``woodshed-tasks``. Commands
run in Woodshed's sandboxes, through ``woodshed serve``; verifiers' own runtime only holds the place (``subprocess``).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.runtimes import ProgramResult

from woodshed.errors import WoodshedError
from woodshed.model.acted import Ended
from woodshed.trainers.acting import Player
from woodshed.trainers.client import Client

__all__ = ["WoodshedHarness", "WoodshedTaskset"]
KEY_VARIABLE = "WOODSHED_SERVE_KEY"


class WoodshedConfig(vf.TasksetConfig):
    """Names of tasks, as the service knows them."""

    names: list[str] = []


class WoodshedData(vf.TaskData):
    """One task; its instruction is known when its attempt has begun."""

    woodshed: str


class WoodshedTask(vf.Task[WoodshedData]):
    """Rewarded by our verdict. Without one the rollout has an error, and no reward."""

    @vf.reward(weight=1.0)
    async def woodshed(self, trace: Any) -> float:
        """The verdict's total."""
        ended = Ended.model_validate(trace.info["woodshed"])
        if ended.reward is None:
            raise RuntimeError(f"no verdict: {ended.cause}: {ended.detail}")
        return ended.reward


class WoodshedTaskset(vf.Taskset[WoodshedTask, WoodshedConfig]):
    """The tasks that are named."""

    def load(self) -> Iterator[WoodshedTask]:
        """One task each."""
        for name in self.config.names:
            data = WoodshedData(name=name, prompt=f"Do the task {name} with your tools.", woodshed=name)
            yield WoodshedTask(data, self.config.task)


class WoodshedHarnessConfig(HarnessConfig):
    """Where the service is; its key is in the environment variable WOODSHED_SERVE_KEY."""

    service: str = "http://127.0.0.1:8700"
    turns: int = 50


class WoodshedHarness(vf.Harness[WoodshedHarnessConfig]):
    """Asks the model through verifiers' own interception, and carries its calls out in an attempt."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any,
        tool_interception_url: str | None = None,
    ) -> Any:
        """One attempt, from its beginning to its verdict, which is in ``trace.info["woodshed"]``."""
        player = Player(Client(self.config.service, os.environ.get(KEY_VARIABLE, "")))
        try:
            begun = await asyncio.to_thread(player.begin, data.woodshed)
            tools = [{"type": "function", "function": tool.to_json()} for tool in begun.tools]
            messages: list[dict[str, Any]] = [{"role": "user", "content": begun.instruction}]
            headers = {"Authorization": f"Bearer {secret}"}
            async with httpx.AsyncClient(headers=headers, timeout=None) as http:  # noqa: S113 (verifiers has deadlines)
                for _ in range(self.config.turns):
                    answer = await http.post(f"{endpoint.rstrip('/')}/chat/completions", json={
                        "model": ctx.model, "messages": messages, "tools": tools})
                    answer.raise_for_status()
                    said = answer.json()["choices"][0]["message"]
                    messages.append(said)
                    if not said.get("tool_calls") or not await _carried_out(player, said["tool_calls"], messages):
                        break
            ended = await asyncio.to_thread(player.finish)
            trace.info["woodshed"] = None if ended is None else ended.to_json()
        except (WoodshedError, httpx.HTTPError) as fault:
            return ProgramResult(1, "", f"{type(fault).__name__}: {fault}")
        finally:
            await asyncio.to_thread(player.leave)
        return ProgramResult(0, "", "")


async def _carried_out(player: Player, calls: list[dict[str, Any]], messages: list[dict[str, Any]]) -> bool:
    """Whether the attempt goes on after these calls, whose results are in ``messages``."""
    for call in calls:
        try:
            arguments = json.loads(call["function"]["arguments"] or "{}")
        except ValueError:
            arguments = None
        content = "The arguments are no JSON object."
        if isinstance(arguments, dict):
            content = (await asyncio.to_thread(player.act, call["function"]["name"], arguments)).content
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return player.ended is None
