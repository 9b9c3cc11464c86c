"""OpenEnv's wire, as its client of version 0.10 speaks it: one acted attempt at a time of one WebSocket.

Messages are those of OpenEnv; what stands in ``reset``'s data, in an action and in an observation is ours, as
``/openenv/schema`` tells. A connection that is gone ends its attempt at once, whatever it was doing.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import Field, ValidationError

from woodshed.api.wording import wording
from woodshed.errors import Conflict, UsageError, WoodshedError
from woodshed.model import Record
from woodshed.model.acted import Act, Begin, Begun, Ended, Seen, StepTold, ToolTold
from woodshed.model.agent import AgentLimits
from woodshed.model.delivery import Name
from woodshed.services.acted import ActedAttempt, ActedAttempts, Full
from woodshed.version import __version__

R = TypeVar("R", bound=Record)
PREFIX = "/openenv"
_AHEAD = 16
"""Messages that a client may send before it is answered."""


class Reset(Record):
    """What ``reset`` may say: the task by its name, a seed, limits and tools. ``episode_id`` is the client's own."""

    task: Name
    seed: int | None = Field(default=None, ge=0, le=2**53)
    episode_id: str | None = Field(default=None, max_length=200)
    limits: AgentLimits = AgentLimits()
    tools: tuple[Name, ...] = ("default",)
    wait_s: float = Field(default=0.0, ge=0, le=600)

    @property
    def begin(self) -> Begin:
        """The same as acted attempts know it."""
        return Begin(task=self.task, seed=self.seed or 0, limits=self.limits, tools=self.tools, wait_s=self.wait_s)


class Action(Record):
    """A call of a tool; or, with ``end``, that what was done is to be verified. ``metadata`` is not looked at."""

    tool: Name | None = None
    arguments: dict[str, Any] = {}
    end: bool = False
    metadata: dict[str, Any] = {}


class Observation(Record):
    """What the tool answered; after ``reset`` the instruction and the tools. ``ended`` where it is over.

    ``step`` where a step of several begins.
    """

    content: str = ""
    exit_code: int | None = None
    truncated: bool = False
    timed_out: bool = False
    task: str | None = None
    instruction: str | None = None
    tools: tuple[ToolTold, ...] | None = None
    deadline_s: float | None = None
    ended: Ended | None = None
    step: StepTold | None = None


class State(Record):
    """Where the connection stands. ``attempt`` names it in the store."""

    episode_id: str | None = None
    step_count: int = 0
    task: str | None = None
    attempt: str | None = None
    done: bool = False


class Failed(Exception):
    """A message that is answered with one of OpenEnv's error codes."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


def routes(attempts: ActedAttempts) -> APIRouter:
    """The routes of the wire over these attempts."""
    router = APIRouter(prefix=PREFIX, tags=["openenv"])

    @router.get("/health")
    async def health() -> dict[str, str]:
        """Whether the service answers."""
        return {"status": "healthy"}

    @router.get("/metadata")
    async def metadata() -> dict[str, str]:
        """What this environment is."""
        return {"name": "woodshed", "version": __version__,
                "description": "Tasks in sandboxes of their own, acted by tools, judged by hidden tests."}

    @router.get("/schema")
    async def schema() -> dict[str, Any]:
        """The JSON schemas of what ``reset`` takes, of actions, observations and the state."""
        return {"action": Action.model_json_schema(), "observation": Observation.model_json_schema(),
                "state": State.model_json_schema(), "reset": Reset.model_json_schema()}

    @router.websocket("/ws")
    async def converse(socket: WebSocket) -> None:
        await socket.accept()
        session = _Session(attempts)
        coming: asyncio.Queue[str] = asyncio.Queue(_AHEAD)
        doing: set[asyncio.Task[None]] = {
            asyncio.create_task(_read(socket, coming)), asyncio.create_task(_answer(socket, coming, session))}
        try:
            await asyncio.wait(doing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in doing:
                task.cancel()
            await asyncio.gather(*doing, return_exceptions=True)
            await session.close()
        with suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
            await socket.close()

    return router


async def _read(socket: WebSocket, coming: asyncio.Queue[str]) -> None:
    """Take what is sent as it comes, so that the end of the connection is seen at once. Ends with it, or a flood."""
    with suppress(WebSocketDisconnect, KeyError, asyncio.QueueFull):  # KeyError: bytes, which the protocol has not
        while True:
            coming.put_nowait(await socket.receive_text())


async def _answer(socket: WebSocket, coming: asyncio.Queue[str], session: _Session) -> None:
    """Answer message by message, until the client says ``close``."""
    while True:
        try:
            answer = await session.answered(_message(await coming.get()))
        except Failed as failed:
            answer = {"type": "error", "data": {"message": str(failed), "code": failed.code}}
        except Exception as error:  # it is told, as over HTTP: a connection that only ends would tell nobody anything
            said = f"it broke as nobody foresaw ({type(error).__name__})"
            answer = {"type": "error", "data": {"message": said, "code": "EXECUTION_ERROR"}}
        if answer is None:
            return
        with suppress(WebSocketDisconnect, RuntimeError):  # whoever reads sees it, too
            await socket.send_text(json.dumps(answer, separators=(",", ":")))


def _message(text: str) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Failed("INVALID_JSON", f"no JSON: {error}") from None
    if not isinstance(message, dict):
        raise Failed("VALIDATION_ERROR", "a message is an object")
    return message


class _Session:
    """What one connection has open."""

    def __init__(self, attempts: ActedAttempts) -> None:
        self._attempts = attempts
        self._acted: ActedAttempt | None = None
        self._id: str | None = None

    async def answered(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to one message; None where it says that this is all. Raises Failed."""
        data = message.get("data", {})
        match message.get("type"):
            case "reset":
                return _told(await self._reset(_read_as(Reset, data)))
            case "step":
                return _told(await self._step(_read_as(Action, data)))
            case "state":
                return {"type": "state", "data": self._state().to_json()}
            case "close":
                return None
            case other:
                raise Failed("UNKNOWN_TYPE", f"unknown message type: {str(other)[:60]}")

    async def close(self) -> None:
        """Nothing of it runs any more."""
        acted, self._acted = self._acted, None
        if acted is not None:
            await acted.close()

    async def _reset(self, reset: Reset) -> Observation:
        await self.close()
        self._id = reset.episode_id
        try:
            self._acted = await self._attempts.begin(reset.begin)
        except Full as full:
            raise Failed("CAPACITY_REACHED", str(full)) from None
        except UsageError as error:
            raise Failed("VALIDATION_ERROR", str(error)) from None
        except WoodshedError as fault:
            raise Failed("FACTORY_ERROR", str(fault)) from None
        begun: Begun = self._acted.begun
        return Observation(content=begun.instruction, instruction=begun.instruction, task=begun.task,
                           tools=begun.tools, deadline_s=begun.deadline_s, step=begun.step)

    async def _step(self, action: Action) -> Observation:
        if (acted := self._acted) is None:
            raise Failed("SESSION_ERROR", "no attempt has begun; reset first, and name a task")
        if (action.tool is None) is not action.end:
            raise Failed("VALIDATION_ERROR", "an action names a tool, or says end")
        try:
            if action.tool is None:
                return Observation(content="The attempt is over.", ended=await acted.finish())
            seen: Seen = await acted.act(Act(tool=action.tool, arguments=action.arguments))
        except Conflict as over:
            raise Failed("SESSION_ERROR", str(over)) from None
        except WoodshedError as fault:
            raise Failed("EXECUTION_ERROR", str(fault)) from None
        return Observation(**dict(seen))

    def _state(self) -> State:
        if (acted := self._acted) is None:
            return State(episode_id=self._id)
        return State(episode_id=self._id or acted.begun.id, step_count=acted.calls, task=acted.begun.task,
                     attempt=acted.begun.id, done=acted.over)


def _read_as(kind: type[R], data: Any) -> R:
    try:
        return kind.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        wrong = wording(error.errors(include_url=False, include_input=False), kind)
        raise Failed("VALIDATION_ERROR", f"{wrong.field}: {wrong.detail}. {wrong.remedy}") from None


def _told(seen: Observation) -> dict[str, Any]:
    """An observation as the wire has it: the reward beside it, null wherever there is none."""
    reward = None if seen.ended is None else seen.ended.reward
    return {"type": "observation", "data": {
        "observation": seen.to_json(), "reward": reward, "done": seen.ended is not None, "metadata": None}}
