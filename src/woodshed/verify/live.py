"""What a task declares of a live sandbox is made true in it, and what it holds in the end is captured."""

from __future__ import annotations

import asyncio
import tarfile
import tempfile
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from posixpath import dirname, normpath
from typing import BinaryIO, cast

from woodshed.errors import EnvironmentFault
from woodshed.interfaces import BlobSink, ExecResult, Sandbox
from woodshed.model import Change, ChangeKind, ChangeSet, EnvironmentSpec, Healthcheck, Task, TaskStep

_TAIL_CHARS = 500
_SPOOLED = 1 << 22
_SETUP = "setup.sh"


async def ready(sandbox: Sandbox, spec: EnvironmentSpec, *, restored: bool = False) -> None:
    """What ``spec`` asks for after its sandbox opened; what was ``restored`` into it belongs to root, as uploads do.

    Raises EnvironmentFault where its health check fails.
    """
    if spec.user and (spec.uploads or restored):
        await _own(sandbox, spec)
    if spec.healthcheck is not None:
        await healthy(sandbox, spec.healthcheck)


async def _own(sandbox: Sandbox, spec: EnvironmentSpec) -> None:
    """The working folder belongs to who works in it: uploads arrive as root's."""
    done = await sandbox.exec(["chown", "-R", spec.user, spec.workdir], user=0, timeout_s=spec.setup_timeout_s)
    if done.exit_code:
        raise EnvironmentFault(f"{spec.workdir} cannot be given to {spec.user}: {_tail(done)}")


async def healthy(sandbox: Sandbox, check: Healthcheck) -> None:
    """``check`` has succeeded once, as Docker's HEALTHCHECK counts. Raises EnvironmentFault where it does not."""
    started, failures = time.monotonic(), 0
    while True:
        starting = time.monotonic() - started < check.start_period_s
        done = await sandbox.exec(check.command, timeout_s=check.timeout_s)
        if done.exit_code == 0 and not done.timed_out:
            return
        failures += not starting
        if failures >= check.retries:
            raise EnvironmentFault(f"the health check failed {failures} times running ({check.command}): {_tail(done)}")
        await asyncio.sleep(check.start_interval_s if starting else check.interval_s)


async def begin_step(sandbox: Sandbox, step: TaskStep, spec: EnvironmentSpec, *, first: bool) -> None:
    """The sandbox is as ``step`` begins: its files are in the working folder, its setup.sh ran, its check succeeded.

    Raises EnvironmentFault where the setup or the check fails, which the agent's work in earlier steps may bring about.
    """
    if not first:  # an earlier step's reference must not show the way
        await sandbox.exec(["rm", "-rf", "--", "/solution"], user=0)
    if step.workdir is not None:
        await sandbox.upload(step.workdir, spec.workdir)
        if spec.user:
            await _own(sandbox, spec)
    if step.setup:
        script = f"{spec.workdir}/{_SETUP}"
        done = await sandbox.exec(["bash", script], cwd=spec.workdir, timeout_s=spec.setup_timeout_s)
        if done.exit_code or done.timed_out:
            how = "did not end" if done.timed_out else f"exit status {done.exit_code}"
            raise EnvironmentFault(f"{_SETUP} of the step {step.name} failed ({how}): {_tail(done)}")
    if step.healthcheck is not None:
        await healthy(sandbox, step.healthcheck)


async def captured(task: Task, sandbox: Sandbox, blobs: BlobSink) -> ChangeSet:
    """What the verifier may see of ``sandbox``, in which nothing runs any more afterwards.

    The task's collect commands run first, as they may: one that fails changes nothing. A verifier with a world of its
    own gets the declared paths whole: what stood there from the start is not in that world.
    """
    for collect in task.verifier.collect:
        await sandbox.exec(collect.command, user=await _uid(sandbox, collect.user), timeout_s=collect.timeout_s)
    await sandbox.kill_all()
    roots = task.verifier.capture or (task.environment.workdir,)
    changes = await sandbox.changes(blobs, roots=roots)
    if task.verifier.environment is None or changes.over_limit is not None:
        return changes
    return await _whole(task, sandbox, blobs, changes)


async def _uid(sandbox: Sandbox, user: str) -> int | None:
    """The number of ``user``, as the sandbox itself has it; None for nobody in particular."""
    if not user or user.isdigit():
        return int(user) if user else None
    said = (await sandbox.exec(["id", "-u", user], user=0)).stdout.strip()
    return int(said) if said.isdigit() else None


async def _whole(task: Task, sandbox: Sandbox, blobs: BlobSink, changes: ChangeSet) -> ChangeSet:
    """``changes`` as a whole: every file below the captured roots, each folder before what is in it."""
    limits = task.environment.limits
    found: dict[str, Change] = {}
    for root in task.verifier.capture:
        with tempfile.SpooledTemporaryFile(_SPOOLED) as spool:
            try:
                await sandbox.download_tar(root, cast(BinaryIO, spool), max_bytes=limits.disk_mb << 20)
            except FileNotFoundError:
                continue
            except OSError:
                return changes.model_copy(update={"over_limit": "disk_mb"})
            spool.seek(0)
            below = await asyncio.to_thread(_entries, cast(BinaryIO, spool), root, blobs, limits.files)
        if below is None:
            return changes.model_copy(update={"over_limit": "files"})
        found |= below
    kept = {path: change for path, change in found.items() if not _left_out(path, task.verifier.left_out)}
    return changes.model_copy(update={"changes": tuple(kept[path] for path in sorted(kept))})


def _entries(stream: BinaryIO, root: str, blobs: BlobSink, most: int) -> dict[str, Change] | None:
    """The changes that make the archive of ``root``; None where it has more than ``most`` entries."""
    found: dict[str, Change] = {}
    above = dirname(root).rstrip("/")
    with tarfile.open(fileobj=stream, errors="surrogateescape") as archive:
        for member in archive:
            if len(found) >= most:
                return None
            path = normpath(f"{above}/{member.name}")
            if path != root and not path.startswith(f"{root.rstrip('/')}/"):
                continue  # the archive is the sandbox's own word
            if member.islnk():
                twin = found.get(normpath(f"{above}/{member.linkname}"))
                change = None if twin is None else twin.model_copy(update={"path": path})
            else:
                change = _change(archive, member, path, blobs)
            if change is not None:
                found[path] = change
    return found


def _change(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, blobs: BlobSink) -> Change | None:
    mode = member.mode & 0o777
    if member.isdir():
        return Change(path=path, kind=ChangeKind.DIRECTORY, mode=mode)
    if member.issym():
        return Change(path=path, kind=ChangeKind.SYMLINK, target=member.linkname)
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        return None
    sha256 = blobs.put(cast(BinaryIO, content))
    return Change(path=path, kind=ChangeKind.FILE, mode=mode, size=member.size, sha256=sha256)


def _left_out(path: str, patterns: dict[str, tuple[str, ...]]) -> bool:
    """True where a pattern of an artifact fits the path below its source, or a part of it, as tar's --exclude does."""
    for source, names in patterns.items():
        if path.startswith(f"{source}/"):
            parts = path[len(source) + 1 :].split("/")
            if any(fnmatch(part, name) for name in names for part in _tails(parts)):
                return True
    return False


def _tails(parts: list[str]) -> Iterator[str]:
    for start in range(len(parts)):
        for end in range(start + 1, len(parts) + 1):
            yield "/".join(parts[start:end])


def _tail(done: ExecResult) -> str:
    return (done.stdout + done.stderr).decode(errors="replace").strip()[-_TAIL_CHARS:]
