"""``woodshed image``: images of containers, without any daemon."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from woodshed import settings
from woodshed.cli.output import Json, emit_json, note, out, plain, table
from woodshed.errors import UsageError
from woodshed.model.counted import counted
from woodshed.services import boxes, images
from woodshed.services.images import Made

app = typer.Typer(no_args_is_help=True)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say only what was made.")]


@app.command("pull")
def pull(
    image: Annotated[str, typer.Argument(help="NAME[:TAG][@DIGEST], oci:PATH[:TAG] or archive:PATH[:TAG].")],
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="Keep it under this name.")] = "",
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Fetch an image and unpack its layers, each in a sandbox of its own."""
    _done(asyncio.run(images.pull(settings.home(), image, name, None if quiet or json else note)), name or image, json)


@app.command("build")
def build(
    context: Annotated[Path, typer.Argument(help="The folder to copy from.")],
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Default: CONTEXT/Dockerfile.")] = None,
    name: Annotated[str, typer.Option("--tag", "-t", metavar="NAME", help="Keep it under this name.")] = "",
    target: Annotated[str | None, typer.Option(help="The stage to build (default: the last).")] = None,
    build_arg: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="An ARG; repeatable.")] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A SandboxPolicy in TOML for what RUN runs.")
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Build a Dockerfile in sandboxes, without a daemon; what has not changed is not done again."""
    given = {}
    for pair in build_arg or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{pair!r} is not NAME=VALUE", field="--build-arg", remedy="Say --build-arg VERSION=1.2.")
        given[key] = value
    made = asyncio.run(images.build(
        settings.home(), context, file, name=name, target=target, arguments=given,
        policy=boxes.load_policy(policy) if policy is not None else None, tell=None if quiet or json else note))
    _done(made, name or f"id:{made.id}", json)


def _done(made: Made, name: str, json: bool) -> None:
    if json:
        emit_json(made.record())
    else:
        out.print(f"{plain(name)} is ready: {counted(made.layers, 'layer')}, {_size(made.size)}, id:{made.id}")


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


@app.command("list")
def list_(json: Json = False) -> None:
    """The images that have a name here."""
    found = images.listing(settings.home())
    if json:
        emit_json({"images": [{"name": one.name, "id": one.id, "size_bytes": one.size, "complete": one.complete,
                               "at": datetime.fromtimestamp(one.at, UTC).isoformat()} for one in found]})
        return
    table(
        ("image", "id", "#size", "since"),
        ((one.name if one.complete else f"{one.name} (incomplete: pull it again)", one.id[:12], _size(one.size),
          f"{datetime.fromtimestamp(one.at, UTC):%Y-%m-%d %H:%M}") for one in found),
    )


@app.command("gc")
def gc(
    days: Annotated[float, typer.Option(min=0, help="Layers that were not used for so long.")] = 7.0,
    json: Json = False,
) -> None:
    """Remove layers that were not used for a while, those of requirements and uploads among them."""
    done = images.collect(settings.home(), days)
    if json:
        emit_json({"layers": done.layers, "images": list(done.names), "busy": done.busy})
    elif done.busy:
        out.print("another process uses the layers: nothing was removed")
    else:
        names = f" and {counted(len(done.names), 'image')}" if done.names else ""
        out.print(f"removed {counted(done.layers, 'layer')}{names}")
