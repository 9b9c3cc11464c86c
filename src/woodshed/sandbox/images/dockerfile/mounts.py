"""``RUN --mount``: what is bound is a layer below the step's own, and so no part of what it leaves."""

from __future__ import annotations

import posixpath
from pathlib import Path

from woodshed.dockerfile import Instruction, Stage
from woodshed.sandbox.images.container import most_bytes
from woodshed.sandbox.images.crossing import Crossing
from woodshed.sandbox.images.dockerfile.context import Ownership, digest, feed
from woodshed.sandbox.images.dockerfile.state import Site, State
from woodshed.sandbox.images.dockerfile.steps import copy_between, settle
from woodshed.sandbox.images.oci import Config
from woodshed.sandbox.native import layering
from woodshed.sandbox.native.box import NativeSandbox

_KEPT = ("cache", "tmpfs")
"""A cache is shared by nothing here, and what is written there stays in the layer: commands that use one work."""


def mounted(build: Site, state: State, step: Instruction, stage: Stage) -> tuple[str, ...]:
    """The layers of what RUN's flags bind, topmost first. Raises UsageError for flags that cannot be followed."""
    layers: tuple[str, ...] = ()
    for name, value in step.flags:
        if name == "network" and value in ("default", "none"):
            continue
        if name == "security" and value == "sandbox":
            continue
        if name != "mount":
            build.refuse(step.line, f"RUN --{name}={value} is not supported", beyond=name in ("network", "security"))
        options = _options(build.fill(state, step, value))
        kind = options.get("type", "bind")
        if kind == "bind":
            layers = (_bound(build, state, step, stage, options, layers), *layers)
        elif kind not in _KEPT:
            build.refuse(step.line, f"RUN --mount=type={kind} is not supported: no secret enters a build here",
                         "Leave it out, or build elsewhere and use the image.", beyond=True)
    return layers


def _options(text: str) -> dict[str, str]:
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        found[{"src": "source", "dst": "target", "destination": "target"}.get(name.strip(), name.strip())] = value
    return found


def _bound(
    build: Site, state: State, step: Instruction, stage: Stage, options: dict[str, str], above: tuple[str, ...]
) -> str:
    source, target = options.get("source", "."), options.get("target", "")
    if not target:
        build.refuse(step.line, "RUN --mount needs a target")
    target = posixpath.normpath(posixpath.join(state.config.workdir, target))
    below = (*above, *state.layers)
    if "from" in options:
        other = build.source(options["from"], stage, step.line)
        name = build.key("bind from", below, other.layers, source, target)

        def between(into: Path, crossing: Crossing) -> None:
            place, giving = build.place(below, Config()), build.place(other.layers, Config())
            crossing(lambda engine: copy_between(engine, place, giving, [source], target, "", None, into))

        return build.layer(name, between)
    paths = build.context.sources(source)
    items = [item for path in paths for item in build.context.items(path)]
    wanted = digest(items)
    alone = not build.context.real(paths[0]).is_dir()

    def make(into: Path, crossing: Crossing) -> None:
        async def work(box: NativeSandbox) -> None:
            await layering.unpack(box.link, lambda write: feed(items, Ownership(), wanted, write), target,
                                  owners=box.world.privileged, only=alone, max_bytes=most_bytes())

        place = build.place(below, Config())
        crossing(lambda engine: settle(engine, place, into, work))

    return build.layer(build.key("bind", below, wanted, target, alone), make)
