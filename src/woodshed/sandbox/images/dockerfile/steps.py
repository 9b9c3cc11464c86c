"""What one step of a Dockerfile does in a sandbox; what it changed there becomes a layer.

Each function makes a sandbox of the image so far, acts in it, and moves what it changed to ``into``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from woodshed.dockerfile import pattern
from woodshed.errors import EnvironmentFault, ImageFault, SandboxDied, UsageError
from woodshed.interfaces import SandboxEngine
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.images import account
from woodshed.sandbox.images.unpack import native, take
from woodshed.sandbox.native import layering
from woodshed.sandbox.native.box import NativeSandbox

_TAIL, _MOST_KEPT = 4000, 5
_APT = "/dev/shm/woodshed-apt.conf"  # noqa: S108 (the sandbox's, and memory: no layer holds it)
_APT_AS_ROOT = b'APT::Sandbox::User "root";\n'
"""apt gives up its rights for its downloads, and checks that it has; where a box has one user alone it cannot."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step acts. ``image`` is that of the sandbox, as an EnvironmentSpec has it."""

    image: str
    policy: SandboxPolicy
    workdir: str = "/"


class Opened:
    """A sandbox for a step; ``async with`` gives it and closes it."""

    def __init__(self, engine: SandboxEngine, place: Place, env: Mapping[str, str] | None = None) -> None:
        self._engine, self._place = engine, place
        self._spec = EnvironmentSpec(image=place.image, workdir=place.workdir, env=dict(env or {}),
                                     limits=place.policy.limits)

    async def __aenter__(self) -> NativeSandbox:
        self._box = native(await self._engine.create(self._spec, self._place.policy))
        return self._box

    async def __aexit__(self, *_: object) -> None:
        await self._box.close()


@dataclass(frozen=True, slots=True)
class Command:
    """What RUN runs; as whom, the image of its place says."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    timeout_s: float


async def run(
    engine: SandboxEngine, place: Place, command: Command, into: Path, tell: Callable[[str], None] | None
) -> None:
    """Run a command. Raises ImageFault with the end of what it said where it fails, EnvironmentFault."""
    said = bytearray()

    def hear(_: Literal["stdout", "stderr"], data: bytes) -> None:
        said.extend(data)
        del said[:-_TAIL]
        if tell is not None:
            for line in data.decode(errors="replace").splitlines():
                tell(f"  {line}")

    kept = list[str]()

    def judge(decision: Mapping[str, Any]) -> None:
        if decision["verdict"] not in ("refused", "failed"):
            return
        line = f"{decision['host']} {decision['verdict']}: {decision['reason']}"
        if line not in kept and len(kept) < _MOST_KEPT:
            kept.append(line)
            if tell is not None:
                tell(f"  network: {line}")

    async with Opened(engine, place) as box:
        try:
            if place.policy.network:
                box.on_decision(judge)
            env = dict(command.env)
            if not box.world.privileged:
                await box.write(_APT, _APT_AS_ROOT)
                env.setdefault("APT_CONFIG", _APT)
            result = await box.exec(command.argv, env=env, timeout_s=command.timeout_s, stream=hear)
            if result.exit_code:
                how = f"took more than {command.timeout_s:.0f} s" if result.timed_out else f"exited {result.exit_code}"
                why = f" (limits reached: {', '.join(result.limits_hit)})" if result.limits_hit else ""
                why += f" (network: {'; '.join(kept)})" if kept else ""
                raise ImageFault(f"the command {how}{why}:\n{said.decode(errors='replace').strip()}")
            await box.kill_all()
        except SandboxDied as error:
            raise EnvironmentFault(f"the command ended its sandbox: {error}") from error
        take(box, "", into)


async def owner(box: NativeSandbox, text: str) -> tuple[int, int]:
    """The numbers of ``--chown=USER[:GROUP]``, by the box's own files. Raises UsageError."""
    texts = [await _text(box, path) if text else "" for path in (account.PASSWD, account.GROUP)]
    return account.owner(text, texts[0], texts[1])


async def _text(box: NativeSandbox, path: str) -> str:
    with suppress(OSError):
        return (await box.read(path, max_bytes=account.MOST_BYTES)).decode(errors="replace")
    return ""


async def settle(
    engine: SandboxEngine, place: Place, into: Path, work: Callable[[NativeSandbox], Awaitable[None]]
) -> None:
    """Have ``work`` act in a sandbox that runs nothing. Raises ImageFault, UsageError, EnvironmentFault."""
    async with Opened(engine, place) as box:
        try:
            await work(box)
        except SandboxDied as error:
            raise EnvironmentFault(f"copying ended its sandbox: {error}") from error
        except OSError as error:
            raise ImageFault(f"cannot be copied: {error.strerror} ({error.filename})") from error
        take(box, "", into)


async def sources(box: NativeSandbox, texts: Sequence[str]) -> list[str]:
    """The paths of a box that sources of ``COPY --from`` name, wildcards resolved. Raises UsageError."""
    found: list[str] = []
    for text in texts:
        parts = [part for part in text.split("/") if part not in ("", ".")]
        paths = [""]
        for index, part in enumerate(parts):
            if not any(mark in part for mark in "*?["):
                paths = [f"{above}/{part}" for above in paths]
                continue
            rule, matching = pattern(part), list[str]()
            for above in paths:
                with suppress(OSError):
                    matching += [f"{above}/{entry.name}" for entry in await box.list(above or "/")
                                 if rule.fullmatch(entry.name)]
            paths = matching
            if not paths:
                raise UsageError(f"{text!r}: nothing is called so ({'/'.join(parts[:index + 1])})")
        found += [path or "/" for path in paths]
    return found


async def copy_between(
    engine: SandboxEngine, place: Place, source: Place, texts: Sequence[str], target: str, chown: str,
    mode: int | None, into: Path,
) -> None:
    """Copy from another image: owners and modes as there, unless ``chown`` or ``mode`` say others."""
    async with Opened(engine, source) as giving, Opened(engine, place) as box:
        try:
            paths = await sources(giving, texts)
            ids = await owner(box, chown) if chown else None
            alone = len(paths) == 1 and not target.endswith("/") and not await _folder(giving, paths[0])
            await layering.copy(giving.link, paths, box.link, target, owners=box.world.privileged, owner=ids,
                                mode=mode, only=alone)
        except SandboxDied as error:
            raise EnvironmentFault(f"copying ended its sandbox: {error}") from error
        except OSError as error:
            raise UsageError(f"cannot be copied: {error.strerror} ({error.filename})") from error
        take(box, "", into)


async def _folder(box: NativeSandbox, path: str) -> bool:
    try:
        await box.list(path)
    except OSError:
        return False
    return True
