"""external: an agent of others runs unchanged in the sandbox; its model is behind the gateway, its steps are ours."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Literal

from woodshed.errors import HarnessFault, UsageError
from woodshed.harness.clip import clip, decoded
from woodshed.harness.external.gate import Counted
from woodshed.harness.external.known import named
from woodshed.harness.external.observe import Reader
from woodshed.harness.external.spec import ExternalAgent, filled
from woodshed.interfaces import Acting, ModelDoor, Process
from woodshed.model import EnvironmentSpec, EventKind, StopReason

HOME = "/tmp/woodshed-agent"  # noqa: S108 (the sandbox's own; in no capture)
_ARGUMENT_BYTES = 120_000
"""Linux takes 128 KiB for one argument (MAX_ARG_STRLEN)."""
_TAIL_BYTES, _SHOWN = 64_000, 4_000
_ACCOUNT_BYTES, _ACCOUNT_SHOWN = 20_000_000, 100_000
_SPARE_S = 0.5
"""So long before the wall the agent is ended, that its end is ours to explain."""


class External:
    """A harness that starts a program of others, serves its model calls, and waits for its end."""

    hears = False
    """It is told its task when it starts, and then left alone."""

    def __init__(self, argument: str | None = None, *, agent: ExternalAgent | None = None) -> None:
        """``argument`` names it: see ``known.py``. Raises UsageError."""
        self.agent = agent or named(argument)
        self.needs_model = self.agent.needs_model

    def furnish(self, spec: EnvironmentSpec) -> EnvironmentSpec:
        """See :class:`woodshed.interfaces.Furnished`."""
        program = self.agent.program
        return spec if program is None else spec.model_copy(update={"programs": (*spec.programs, program)})

    async def act(self, acting: Acting) -> StopReason:
        """Why it ended. Raises UsageError, Unsupported, ModelFault, HarnessFault, and the sandbox's faults."""
        agent, gate = self.agent, Counted(acting, Reader(self.agent.result_code, self.agent.action))
        before = await _present(acting, agent.litter)
        async with _address(acting, gate, agent) as (url, door):
            values = _values(acting, agent, url, door)
            tail = _Tail()
            process = await _started(acting, agent, values, tail)
            try:
                code = await _ended(process, acting, gate, agent.grace_s)
            finally:
                await process.kill()
            said = tail.text(door)
            await _account(acting, agent, values)
        await _cleared(acting, [path for path in agent.litter if path not in before])
        return _judged(agent, gate, code, said, acting)


@asynccontextmanager
async def _address(
    acting: Acting, gate: Counted, agent: ExternalAgent
) -> AsyncIterator[tuple[str, ModelDoor | None]]:
    """The address of its model inside the sandbox, for as long as it lasts; empty for an agent that needs none."""
    if not agent.needs_model:
        yield "", None
        return
    if acting.model is None or acting.serve is None:
        raise UsageError(f"the agent '{agent.name}' needs a model", field="model", remedy="Give one with --model.")
    door = acting.serve(acting.model, gate, acting.agent.model.name if acting.agent.model else "model")
    try:
        listener = await acting.sandbox.listen(door.admit)
        try:
            yield f"http://127.0.0.1:{listener.port}/v1", door
        finally:
            await listener.close()
    finally:
        await door.close()


def _values(acting: Acting, agent: ExternalAgent, url: str, door: ModelDoor | None) -> Mapping[str, str]:
    if len(acting.task.instruction.encode()) > _ARGUMENT_BYTES and any("{instruction}" in w for w in agent.command):
        raise UsageError("the instruction is too long for an argument", field="instruction",
                         remedy=f"Let the command of '{agent.name}' use {{instruction_file}}.")
    place = agent.program.place if agent.program else ""
    return {
        "instruction": acting.task.instruction, "instruction_file": f"{HOME}/instruction.md", "base_url": url,
        "model": acting.agent.model.name if acting.agent.model else "", "bin": f"{place}/bin", "home": HOME,
        "workdir": acting.task.environment.workdir or ".", "key": door.key if door is not None else "",
    }


async def _started(acting: Acting, agent: ExternalAgent, values: Mapping[str, str], tail: _Tail) -> Process:
    sandbox = acting.sandbox
    await sandbox.write(values["instruction_file"], acting.task.instruction.encode())
    for path, text in agent.files.items():
        await sandbox.write(posixpath.join(HOME, filled(path, values)), filled(text, values).encode(), mode=0o600)
    given = {
        "OPENAI_BASE_URL": values["base_url"], "OPENAI_API_BASE": values["base_url"], "OPENAI_API_KEY": values["key"],
        "ANTHROPIC_BASE_URL": values["base_url"].removesuffix("/v1"), "ANTHROPIC_API_KEY": values["key"],
        "WOODSHED_MODEL": values["model"], "WOODSHED_INSTRUCTION_FILE": values["instruction_file"],
        "WOODSHED_AGENT_HOME": HOME, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost",
    } if agent.needs_model else {"WOODSHED_INSTRUCTION_FILE": values["instruction_file"], "WOODSHED_AGENT_HOME": HOME}
    env = given | {name: filled(text, values) for name, text in agent.env.items()}
    argv = [filled(word, values) for word in agent.command]
    acting.emit(EventKind.STATE, {"state": "agent_started", "agent": agent.name,
                                  "command": [clip(word, 400)[0] for word in agent.command]})
    return await sandbox.start(argv, cwd=acting.task.environment.workdir or None, env=env, stream=tail.add)


async def _ended(process: Process, acting: Acting, gate: Counted, grace_s: float) -> int | StopReason:
    """Its exit code, or the limit at which it was ended. Once a limit was met it has a while to end by itself."""
    ending, met = asyncio.ensure_future(process.wait()), asyncio.ensure_future(gate.met.wait())
    wall_s = max(0.001, acting.deadline_s - min(_SPARE_S, 0.02 * acting.deadline_s))
    try:
        async with asyncio.timeout(wall_s):
            await asyncio.wait([ending, met], return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                await asyncio.wait([ending], timeout=grace_s)
    except TimeoutError:
        return gate.reached or StopReason.WALL
    finally:
        met.cancel()
        if not ending.done():
            ending.cancel()
    return await ending if not ending.cancelled() and ending.done() else gate.reached or StopReason.WALL


def _judged(agent: ExternalAgent, gate: Counted, code: int | StopReason, said: str, acting: Acting) -> StopReason:
    """Why it ended. Raises the fault of ours that it ended upon."""
    how = f"exited {code}" if isinstance(code, int) else f"was ended ({code.value})"
    acting.emit(EventKind.NOTE, {"text": f"{agent.name} {how}" + (f"; it said:\n{said}" if said else "")})
    if gate.reached is not None:
        return gate.reached
    if (fault := gate.fault) is not None:
        raise fault
    if isinstance(code, StopReason):
        return code
    if code and agent.needs_model and not gate.asked:
        raise HarnessFault(f"{agent.name} exited {code} before it asked its model anything: {said[-1_000:]}")
    if gate.full:
        return StopReason.CONTEXT
    return agent.exit_codes.get(code, StopReason.EXITED if code else StopReason.FINISHED)


async def _account(acting: Acting, agent: ExternalAgent, values: Mapping[str, str]) -> None:
    """What the agent wrote about itself, as far as it is short."""
    if agent.trajectory is None:
        return
    path = posixpath.join(HOME, filled(agent.trajectory, values))
    try:
        text = decoded(await acting.sandbox.read(path, max_bytes=_ACCOUNT_BYTES))
    except OSError as error:
        acting.emit(EventKind.NOTE, {"text": f"{agent.name} left no account at {path}: {error.strerror or error}"})
        return
    shown, clipped = clip(text.replace(values["key"], "***") if values["key"] else text, _ACCOUNT_SHOWN)
    acting.emit(EventKind.STATE, {"state": "agent_trajectory", "path": path, "content": shown, "truncated": clipped})


async def _present(acting: Acting, paths: tuple[str, ...]) -> set[str]:
    found = set()
    for path in paths:
        try:
            await acting.sandbox.stat(posixpath.join(acting.task.environment.workdir or "/", path))
            found.add(path)
        except OSError:
            continue
    return found


async def _cleared(acting: Acting, paths: list[str]) -> None:
    if paths:
        await acting.sandbox.exec(["rm", "-rf", "--", *paths], cwd=acting.task.environment.workdir or None,
                                  timeout_s=60.0)


class _Tail:
    """The end of what a program says, on both streams."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def add(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        """It said this."""
        self._kept += data
        if len(self._kept) > 2 * _TAIL_BYTES:
            del self._kept[:-_TAIL_BYTES]

    def text(self, door: ModelDoor | None) -> str:
        """What is kept of it; its key is not."""
        text = decoded(bytes(self._kept)).strip()
        if door is not None:
            text = text.replace(door.key, "***")
        return text[-_SHOWN:]
