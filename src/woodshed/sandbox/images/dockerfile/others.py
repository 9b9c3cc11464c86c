"""Dockerfiles that ask for what is not built here: buildah, podman or docker builds them, where one is installed."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from pathlib import Path

from woodshed.dockerfile import Beyond
from woodshed.errors import ImageFault, UsageError
from woodshed.model import SandboxPolicy
from woodshed.sandbox.images import oci
from woodshed.sandbox.images.container import Image, Tell
from woodshed.sandbox.images.dockerfile.state import Bases, Order

TOOLS = ("buildah", "podman", "docker")
"""The first that is installed builds."""
_TAIL = 2000


def built_by_another(order: Order, bases: Bases, beyond: Beyond, tell: Tell | None) -> Image:
    """The image as another builder makes it. Raises ``beyond`` with a remedy where there is none; ImageFault."""
    tool = next((name for name in TOOLS if shutil.which(name)), None)
    if tool is None:
        remedy = " ".join(filter(None, (beyond.remedy, "Or install buildah, podman or docker, which then build it.")))
        raise UsageError(beyond.message, file=beyond.file, field=beyond.field, remedy=remedy)
    if order.policy != SandboxPolicy(limits=order.policy.limits):
        raise UsageError(f"{beyond.message}; {tool} could build it, and cannot hold it to the policy of this build",
                         file=beyond.file, field=beyond.field,
                         remedy="Build without a policy (there is no network then), or do without the instruction.")
    if tell is not None:
        tell(f"{beyond.field}: {beyond.message}; building with {tool}")
    with bases.layers.scratch() as scratch:
        name = f"woodshed-{uuid.uuid4().hex}"
        try:
            source = _made(tool, order, name, scratch, beyond)
            return bases.take_in(source, tell)
        finally:
            remove = [tool, "rmi", name] if tool != "docker" else [tool, "image", "rm", name]
            subprocess.run(remove, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _made(tool: str, order: Order, name: str, scratch: Path, beyond: Beyond) -> oci.Source:
    build = [tool, "bud" if tool == "buildah" else "build", "-f", str(order.file), "-t", name]
    build += ["--layers"] if tool != "docker" else []
    build += ["--network=none"]
    build += ["--target", order.target] if order.target else []
    for key, value in order.arguments.items():
        build += ["--build-arg", f"{key}={value}"]
    _do([*build, str(order.context)], order, beyond)
    if tool == "docker":
        archive = scratch / "image.tar"
        _do([tool, "save", "-o", str(archive), name], order, beyond)
        return oci.opened(f"archive:{archive}")
    _do([tool, "push", name, f"oci:{scratch / 'layout'}:latest"], order, beyond)
    return oci.opened(f"oci:{scratch / 'layout'}")


def _do(command: list[str], order: Order, beyond: Beyond) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                          check=False)
    if done.returncode:
        said = (done.stdout + done.stderr)[-_TAIL:].strip()
        raise ImageFault(f"{order.file}: {beyond.field}: {beyond.message}; and {command[0]} could not build it either: "
                         f"{said}")
