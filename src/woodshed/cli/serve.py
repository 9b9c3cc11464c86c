"""``woodshed serve``: rollouts for trainers over HTTP, behind a key, on this machine's own loopback."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from woodshed import settings
from woodshed.cli.options import Engine, Strict
from woodshed.cli.output import Json, emit_json, note
from woodshed.cli.worker import aside
from woodshed.errors import UsageError
from woodshed.sandbox.native.places import sweep
from woodshed.services import offer as offers
from woodshed.services import projects
from woodshed.services.acted import MOST
from woodshed.services.home import opened
from woodshed.services.keys import service_key
from woodshed.services.shared import pool_name
from woodshed.services.working import CEILING, Terms

Tasks = Annotated[list[Path], typer.Option(
    "--tasks", metavar="DIR", help="Folder of tasks that may be asked for, by their path below it; repeatable.")]
Endpoints = Annotated[list[str] | None, typer.Option(
    "--endpoint", metavar="NAME=MODEL@URL", help="Endpoint that may be asked for by name; repeatable.")]
Agents = Annotated[list[str] | None, typer.Option(
    "--agent", "-a", metavar="NAME", help="Agent with an argument that may be asked for (replay:FILE …); repeatable.")]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="TOML of endpoints and agents; docs/rollouts.md.")]
Patterns = Annotated[list[str] | None, typer.Option(
    "--allow-endpoints", metavar="PATTERN", help="Endpoints that may be asked for by address; repeatable.")]
Capture = Annotated[str, typer.Option(help="How endpoints are asked for token ids: off, auto, or a kind of server.")]
Concurrency = Annotated[int, typer.Option("--concurrency", "-c", min=0, max=CEILING,
                                          help="Attempts at a time here; 0 leaves them to 'woodshed worker'.")]
Acted = Annotated[int, typer.Option("--acted", min=0, metavar="N",
                                    help="Attempts at a time that clients act call by call.")]
Host = Annotated[str, typer.Option(help="Address to listen at.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes any.")]
Remote = Annotated[bool, typer.Option("--allow-remote", help="Listen where other machines reach it, too.")]
Pool = Annotated[str, typer.Option(metavar="NAME", help="Leave attempts to workers of this pool alone.")]
Most = Annotated[int, typer.Option("--most-attempts", min=1, help="Attempts of one request at the most.")]
Project = Annotated[str | None, typer.Option(metavar="NAME", help="Whose requests are (default: as the setting says).")]


def serve(
    tasks: Tasks,
    endpoint: Endpoints = None,
    agent: Agents = None,
    config: Config = None,
    allow_endpoints: Patterns = None,
    capture: Capture = "off",
    concurrency: Concurrency = 2,
    acted: Acted = MOST,
    host: Host = "127.0.0.1",
    port: Port = 8700,
    allow_remote: Remote = False,
    engine: Engine = None,
    pool: Pool = "",
    most_attempts: Most = offers.MOST,
    strict: Strict = False,
    project: Project = None,
    json: Json = False,
) -> None:
    """Hand out rollouts to trainers. SIGTERM ends it when what runs is done, a second one at once; nothing is lost."""
    try:
        from woodshed.api import serving
    except ImportError as error:
        raise UsageError(f"'{error.name}' is not installed", remedy="Say: pip install 'woodshed[serve]'") from None
    offer = offers.made(
        tasks, file=config, endpoints=endpoint or (), agents=agent or (), patterns=allow_endpoints or (),
        capture=capture, engine=engine or settings.setting("engine"), pool=pool_name(pool), most=most_attempts,
        strict=strict, project=projects.named(project))
    with opened() as home, serving.listening(host, port, remote=allow_remote) as listener:
        key, file = service_key(home.path)
        terms = Terms(slots=concurrency, pool=pool, aside=aside(pool), sweep=partial(sweep, home.path))
        where = serving.address(listener)
        if json:
            emit_json({"url": where, "key_file": None if file is None else str(file), "concurrency": concurrency})
        note(f"rollouts at {where}, key in {'WOODSHED_SERVE_KEY' if file is None else file}")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serving.serve(home, offer, key, listener, terms if concurrency else None, note,
                                     acted=acted))
