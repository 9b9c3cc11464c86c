"""``woodshed sandbox``: a sandbox by hand, to see what an agent would see."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from woodshed import settings
from woodshed.cli.output import Json, emit_json, out
from woodshed.cli.terminal import join
from woodshed.errors import Unsupported, UsageError
from woodshed.interfaces import ExecResult
from woodshed.model import EnvironmentSpec, Limits, Upload
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.places import sweep
from woodshed.services import boxes

app = typer.Typer(no_args_is_help=True)

Image = Annotated[str, typer.Option(help="host, or dir:PATH of an unpacked root.")]
Requirement = Annotated[list[str] | None, typer.Option("--requirement", "-r", help="A pip requirement; repeatable.")]
Copy = Annotated[list[str] | None, typer.Option("--copy", metavar="SRC:DST", help="Files there at the start.")]
Memory = Annotated[int | None, typer.Option(min=1, help="Memory limit in MB.")]


def _spec(image: str, requirement: list[str] | None, copy: list[str] | None, memory_mb: int | None) -> EnvironmentSpec:
    uploads = []
    for pair in copy or ():
        source, colon, target = pair.rpartition(":")
        if not colon or not target.startswith("/"):
            raise UsageError(f"'{pair}' is not SRC:DST", field="--copy", remedy="Say --copy ./folder:/workspace.")
        if not Path(source).exists():
            raise UsageError("no such file or folder", file=source, field="--copy", remedy="Check the path.")
        uploads.append(Upload(source=Path(source).absolute(), target=target))
    return EnvironmentSpec(
        image=image, requirements=tuple(requirement or ()), uploads=tuple(uploads), limits=Limits(memory_mb=memory_mb)
    )


@app.command("run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    command: Annotated[list[str], typer.Argument(help="The command, after --.")],
    image: Image = "host",
    requirement: Requirement = None,
    copy: Copy = None,
    memory_mb: Memory = None,
    timeout: Annotated[float | None, typer.Option(min=0.1, metavar="SECONDS", help="Kill it after so long.")] = None,
    json: Json = False,
) -> None:
    """Run one command in a fresh sandbox and leave with its exit code."""

    def stream(name: Literal["stdout", "stderr"], data: bytes) -> None:
        target = sys.stdout if name == "stdout" else sys.stderr
        target.buffer.write(data)
        target.buffer.flush()

    result: ExecResult = asyncio.run(
        boxes.run_once(
            _spec(image, requirement, copy, memory_mb),
            command,
            engine=settings.setting("engine"),
            timeout_s=timeout,
            stream=None if json else stream,
        )
    )
    if json:
        emit_json(
            {
                "exit_code": result.exit_code,
                "stdout": result.stdout.decode(errors="replace"),
                "stderr": result.stderr.decode(errors="replace"),
                "truncated": result.truncated,
                "timed_out": result.timed_out,
                "oom_killed": result.oom_killed,
                "seconds": round(result.seconds, 6),
            }
        )
    raise typer.Exit(result.exit_code)


@app.command("shell")
def shell(
    image: Image = "host", requirement: Requirement = None, copy: Copy = None, memory_mb: Memory = None
) -> None:
    """Open an interactive shell in a fresh sandbox; it is gone when you leave."""
    if not sys.stdin.isatty():
        raise UsageError("a shell needs a terminal", remedy="Use: woodshed sandbox run -- COMMAND")
    raise typer.Exit(asyncio.run(_shell(_spec(image, requirement, copy, memory_mb))))


async def _shell(spec: EnvironmentSpec) -> int:
    async with boxes.opened(spec, engine=settings.setting("engine")) as sandbox:
        if not isinstance(sandbox, NativeSandbox):
            raise Unsupported("a terminal: this engine has none. Use 'woodshed sandbox run -- COMMAND'")
        terminal = await sandbox.pty()
        try:
            return await join(terminal.fd, asyncio.ensure_future(terminal.process.wait()))
        finally:
            os.close(terminal.fd)


@app.command("gc")
def gc(json: Json = False) -> None:
    """Remove what dead processes left behind; never touches a live one."""
    swept = len(sweep(settings.home()))
    if json:
        emit_json({"swept": swept})
    else:
        out.print(f"removed {swept} leftover sandbox folders" if swept else "nothing was left behind")


