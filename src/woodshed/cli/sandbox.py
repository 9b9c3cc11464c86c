"""``woodshed sandbox``: a sandbox by hand, to see what an agent would see."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from woodshed.cli.output import Json, emit_json, note, out
from woodshed.cli.terminal import join, size
from woodshed.errors import UsageError
from woodshed.interfaces import ExecResult
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy, Upload
from woodshed.sandbox.native.places import sweep
from woodshed.services import boxes

app = typer.Typer(no_args_is_help=True)

Image = Annotated[str, typer.Option(help="host, dir:PATH, oci:PATH, dockerfile:PATH, or a registry's image.")]
Requirement = Annotated[list[str] | None, typer.Option("--requirement", "-r", help="A pip requirement; repeatable.")]
Copy = Annotated[list[str] | None, typer.Option("--copy", metavar="SRC:DST", help="Files there at the start.")]
Memory = Annotated[int | None, typer.Option(min=1, help="Memory limit in MB.")]
User = Annotated[
    str, typer.Option("--user", "-u", metavar="USER[:GROUP]", help="Who runs it (default: as the image says).")
]
Policy = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A SandboxPolicy in TOML: directories, commands, limits, variables.")
]


def _spec(
    image: str, requirement: list[str] | None, copy: list[str] | None, memory_mb: int | None, user: str
) -> EnvironmentSpec:
    uploads = []
    for pair in copy or ():
        source, colon, target = pair.rpartition(":")
        if not colon or not target.startswith("/"):
            raise UsageError(f"'{pair}' is not SRC:DST", field="--copy", remedy="Say --copy ./folder:/workspace.")
        if not Path(source).exists():
            raise UsageError("no such file or folder", file=source, field="--copy", remedy="Check the path.")
        uploads.append(Upload(source=Path(source).absolute(), target=target))
    return EnvironmentSpec(
        image=image, workdir="", user=user, requirements=tuple(requirement or ()), uploads=tuple(uploads),
        limits=Limits(memory_mb=memory_mb)
    )


def _policy(file: Path | None, limits: Limits) -> SandboxPolicy | None:
    """The file's, with the limits that options gave over its own."""
    if file is None:
        return None
    policy, given = boxes.load_policy(file), limits.model_dump(exclude_defaults=True)
    return policy.model_copy(update={"limits": policy.limits.model_copy(update=given)})


@app.command("run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    command: Annotated[list[str], typer.Argument(help="The command, after --.")],
    image: Image = "host",
    requirement: Requirement = None,
    copy: Copy = None,
    memory_mb: Memory = None,
    policy: Policy = None,
    user: User = "",
    timeout: Annotated[float | None, typer.Option(min=0.1, metavar="SECONDS", help="Kill it after so long.")] = None,
    json: Json = False,
) -> None:
    """Run one command in a fresh sandbox and leave with its exit code."""

    def stream(name: Literal["stdout", "stderr"], data: bytes) -> None:
        target = sys.stdout if name == "stdout" else sys.stderr
        target.buffer.write(data)
        target.buffer.flush()

    spec = _spec(image, requirement, copy, memory_mb, user)
    held = _policy(policy, spec.limits)
    result: ExecResult = asyncio.run(
        boxes.run_once(
            spec,
            command,
            engine=boxes.engine_of(held, None),
            timeout_s=timeout,
            stream=None if json else stream,
            policy=held,
            tell=note,
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
    image: Image = "host",
    requirement: Requirement = None,
    copy: Copy = None,
    memory_mb: Memory = None,
    policy: Policy = None,
    user: User = "",
) -> None:
    """Open an interactive shell in a fresh sandbox; it is gone when you leave."""
    if not sys.stdin.isatty():
        raise UsageError("a shell needs a terminal", remedy="Use: woodshed sandbox run -- COMMAND")
    spec = _spec(image, requirement, copy, memory_mb, user)
    raise typer.Exit(asyncio.run(_shell(spec, _policy(policy, spec.limits))))


async def _shell(spec: EnvironmentSpec, policy: SandboxPolicy | None) -> int:
    async with boxes.opened(spec, engine=boxes.engine_of(policy, None), policy=policy, tell=note) as sandbox:
        rows, columns = size()
        terminal = await sandbox.pty(rows=rows, columns=columns)
        try:
            return await join(terminal)
        finally:
            await terminal.close()


@app.command("gc")
def gc(json: Json = False) -> None:
    """Remove what dead processes left behind and blobs that nothing names; never touches what lives."""
    from woodshed.services import janitor  # with the store and the durable engine, which a sandbox does not need
    from woodshed.services.home import opened

    with opened() as home:
        swept = asyncio.run(janitor.clean_now(home, partial(sweep, home.path)))
    if json:
        emit_json({"swept": len(swept.sandboxes), **swept.to_json()})
    else:
        out.print(str(swept) + (f" (no blobs: {swept.kept})" if swept.kept else ""))


