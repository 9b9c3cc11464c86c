"""shell, and jobs: a shell that stays, and commands that run on in the background. Not among the default tools."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from woodshed.errors import EnvironmentFault, SandboxDied
from woodshed.harness.clip import decoded
from woodshed.harness.kit import Job, Kit
from woodshed.harness.tools.output import KEPT_BYTES, shown
from woodshed.harness.tools.shell import QUIET, too_long
from woodshed.interfaces import Reach, Sandbox, ToolResult, ToolSpec

_MOST_JOBS = 16
_KILL_S = 5.0
_TIMEOUT = {"type": "number", "description": "seconds until it is cut off"}
_JOB = {"type": "string", "description": "as start_job named it"}


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs a command in the one shell of this conversation."""

    kit: Kit
    reach: ClassVar[Reach] = "sandbox"
    spec = ToolSpec(
        "shell", "Run a command in a shell that stays: its directory, variables and functions hold for the next one.",
        {"type": "object", "properties": {
            "command": {"type": "string", "description": "the shell command"}, "timeout_s": _TIMEOUT},
         "required": ["command"]})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Its output and exit code."""
        if (wrong := too_long("shell", arguments["command"])) is not None:
            return wrong
        try:
            if self.kit.session is None:
                self.kit.session = await sandbox.session(cwd=self.kit.task.environment.workdir or None, env=QUIET)
            return shown(await self.kit.session.run(arguments["command"], timeout_s=timeout_s, output_bytes=KEPT_BYTES))
        except EnvironmentFault as fault:
            self.kit.session = None
            return _unable("shell", fault)


@dataclass(frozen=True, slots=True)
class StartJob:
    """Starts a command in the background."""

    kit: Kit
    reach: ClassVar[Reach] = "sandbox"
    spec = ToolSpec(
        "start_job", "Start a command in the background, such as a server, and go on.",
        {"type": "object", "properties": {"command": {"type": "string", "description": "the shell command"}},
         "required": ["command"]})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """The job's name."""
        command, jobs = arguments["command"], self.kit.jobs
        if (wrong := too_long("start_job", command)) is not None:
            return wrong
        if sum(job.exit_code is None for job in jobs.values()) >= _MOST_JOBS:
            return ToolResult(f"start_job: {_MOST_JOBS} jobs are running; kill one first.", exit_code=1)
        output = bytearray()
        dropped = [0]

        def stream(name: Literal["stdout", "stderr"], data: bytes) -> None:
            output.extend(data)
            if (more := len(output) - KEPT_BYTES) > 0:
                del output[:more]
                dropped[0] += more

        try:
            process = await sandbox.start(
                command, cwd=self.kit.task.environment.workdir or None, env=QUIET, stream=stream)
        except EnvironmentFault as fault:
            return _unable("start_job", fault)
        name = f"job{len(jobs) + 1}"
        jobs[name] = Job(process, command, output, dropped)
        return ToolResult(f"{name} is running.", exit_code=0)


@dataclass(frozen=True, slots=True)
class ReadJob:
    """Shows what a job wrote."""

    kit: Kit
    reach: ClassVar[Reach] = "sandbox"
    parallel_safe: ClassVar[bool] = True
    spec = ToolSpec(
        "read_job", "Read what a background job wrote so far, both streams as they came.",
        {"type": "object", "properties": {
            "job": _JOB, "offset": {"type": "integer", "description": "first character; default: all of it"}},
         "required": ["job"]})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Its state and its output."""
        job = self.kit.jobs.get(arguments["job"])
        return _unknown(self.kit, arguments["job"]) if job is None else _state(job, max(0, arguments.get("offset", 0)))


@dataclass(frozen=True, slots=True)
class WaitJob:
    """Waits for a job's end."""

    kit: Kit
    reach: ClassVar[Reach] = "sandbox"
    spec = ToolSpec(
        "wait_job", "Wait until a background job ends, and read what it wrote.",
        {"type": "object", "properties": {"job": _JOB, "timeout_s": _TIMEOUT}, "required": ["job"]})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Its state and its output; not ending in time is no fault of the job's, and leaves it running."""
        job = self.kit.jobs.get(arguments["job"])
        if job is None:
            return _unknown(self.kit, arguments["job"])
        await _ended(job, 0.9 * timeout_s)
        return _state(job, 0)


@dataclass(frozen=True, slots=True)
class KillJob:
    """Ends a job."""

    kit: Kit
    reach: ClassVar[Reach] = "sandbox"
    spec = ToolSpec(
        "kill_job", "End a background job and all that it started.",
        {"type": "object", "properties": {"job": _JOB}, "required": ["job"]})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """How it ended."""
        job = self.kit.jobs.get(arguments["job"])
        if job is None:
            return _unknown(self.kit, arguments["job"])
        await job.process.kill()
        await _ended(job, _KILL_S)
        return ToolResult(f"{arguments['job']} ended with exit code {job.exit_code}.", exit_code=0)


def _unable(tool: str, fault: EnvironmentFault) -> ToolResult:
    """What the agent may have brought about (no directory, no more processes) is an answer; a dead sandbox is none.

    Where the fault is the world's, ``bash`` meets it too, and raises it.
    """
    if isinstance(fault, SandboxDied):
        raise fault
    return ToolResult(f"{tool}: {fault}. Use bash instead.", exit_code=1)


async def _ended(job: Job, seconds: float) -> None:
    """Wait for its end, at most so long."""
    if job.exit_code is not None:
        return
    try:
        async with asyncio.timeout(seconds):
            job.exit_code = await job.process.wait()
    except TimeoutError:
        return


def _state(job: Job, offset: int) -> ToolResult:
    text = decoded(bytes(job.output))
    # How long tells one look from the next: to wait for a long job is no circle.
    state = (f"is running, for {time.monotonic() - job.began:.1f} s" if job.exit_code is None
             else f"ended with exit code {job.exit_code}")
    lost = f"; the first {job.dropped[0]} bytes of its output are gone" if job.dropped[0] else ""
    return ToolResult(f"[it {state}; {len(text):,} characters of output{lost}]\n{text[offset:]}", exit_code=0)


def _unknown(kit: Kit, name: str) -> ToolResult:
    known = ", ".join(kit.jobs) or "none was started"
    return ToolResult(f"There is no job '{name[:60]}'. Jobs: {known}.", exit_code=1)
