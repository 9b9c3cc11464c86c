"""Prepared root file systems, as the engine sees them: what an image is asked for, and what lies above it."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from woodshed.errors import EnvironmentFault, Unsupported
from woodshed.interfaces import ExecResult
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.native.link import Acting

_Root = TypeVar("_Root")
_TAIL_CHARS = 2000


class Bound(Protocol):
    """A host directory that stands read-only at ``target``."""

    @property
    def source(self) -> Path:
        """On the host."""

    @property
    def target(self) -> str:
        """In the box."""


class Prepared(Protocol):
    """A root file system ready to mount; :class:`woodshed.sandbox.images.rootfs.Rootfs` is one."""

    @property
    def digest(self) -> str:
        """Names the content."""

    @property
    def lowers(self) -> tuple[Path, ...]:
        """Overlay lower directories, topmost first."""

    @property
    def binds(self) -> Sequence[Bound]:
        """What is bound over them."""

    @property
    def env(self) -> Mapping[str, str]:
        """The image's environment."""

    @property
    def shell(self) -> str:
        """/bin/bash or /bin/sh."""


class Prepares(Protocol):
    """Makes root file systems of specs: blocking, cached, safe in threads."""

    def prepare(self, spec: EnvironmentSpec) -> Prepared:
        """The root file system of ``spec``. Raises ImageFault."""


@dataclass(frozen=True, slots=True)
class Root:
    """A prepared root with the layer its setup command left on top, if there is one."""

    digest: str
    lowers: tuple[Path, ...]
    image: Prepared


def workdir(spec: EnvironmentSpec, image: Prepared) -> str:
    """Where its sandboxes work: as the task says, else as the image does."""
    return spec.workdir or getattr(image, "workdir", "/workspace")


def acting(spec: EnvironmentSpec, policy: SandboxPolicy, image: Prepared, privileged: bool) -> Acting | None:
    """Who commands are by USER of the image or the task; None for root. Raises Unsupported where there is root alone.

    HOME and USER go with it, unless image, task or policy say what they are.
    """
    account = getattr(image, "account", None)
    if account is None:
        return None
    if not privileged:
        if getattr(image, "building", False):
            return None  # RUN: every owner seems to be set, and everything is root's
        raise Unsupported(f"users: commands are to run as {account.name or account.uid} (USER of the image, or the "
                          "task's), and a sandbox of an ordinary user has its root alone. Run Woodshed as root, or say "
                          "root: user = \"root\" under [agent], or --user root")
    told = {"HOME": account.home, **({"USER": account.name} if account.name else {})}
    decided = {**image.env, **spec.env, **policy.env, **dict.fromkeys(policy.env_drop)}
    return Acting(account.uid, account.gid, account.groups,
                  {name: value for name, value in told.items() if name not in decided})


def traits(image: Prepared, privileged: bool) -> dict[str, Any]:
    """What else of an image decides how its boxes are made; images that do not say have none of it."""
    building = getattr(image, "building", False) and not privileged
    return {"own_tmp": getattr(image, "own_tmp", False), "lenient": building}


def key(spec: EnvironmentSpec) -> object:
    """Equal for specs whose sandboxes start with the same files."""
    setup = spec.setup and (spec.workdir, spec.setup, tuple(sorted(spec.env.items())))
    return spec.image, spec.requirements, spec.uploads, spec.user, spec.programs, setup


async def once(
    made: dict[object, asyncio.Task[_Root]], spec: EnvironmentSpec, make: Callable[[], Coroutine[Any, Any, _Root]]
) -> _Root:
    """The root of ``spec``, made once for whoever asks; anew after a failure, which all who waited have. Raises as it.

    Who is cancelled while waiting takes nobody else's away.
    """
    name = key(spec)
    task = made.get(name)
    if task is None:
        task = made[name] = asyncio.get_running_loop().create_task(make())
    if not task.done():
        await asyncio.wait([task])
    if task.cancelled() or task.exception():
        made.pop(name, None)  # the next one may have more luck
    return task.result()


def check_setup(result: ExecResult) -> None:
    """The setup command did its work. Raises EnvironmentFault with the end of what it said."""
    if result.exit_code:
        how = "timed out" if result.timed_out else f"exited {result.exit_code}"
        tail = (result.stdout + result.stderr).decode(errors="replace")[-_TAIL_CHARS:]
        raise EnvironmentFault(f"the setup command {how}: {tail}")


def set_up_digest(below: str, spec: EnvironmentSpec, command: str) -> str:
    """The digest of the root ``below`` with what ``command`` made of it."""
    total = hashlib.sha256(f"{below}\n{spec.workdir}\n{sorted(spec.env.items())}\n{command}".encode())
    return f"sha256:{total.hexdigest()}"


class _Threads:
    """Threads without a bound; one is started only where none is idle.

    Not the loop's pool: building a requirement makes a sandbox, whose own preparation must not wait for room. Daemons,
    so that a program's end does not wait for a download.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = threading.Semaphore(0)

    def do(self, job: Callable[[], None]) -> None:
        """Do ``job`` in a thread that waits for no other."""
        self._work.put(job)
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._run, name="woodshed-prepare", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._work.get()()
            self._idle.release()


_threads = _Threads()


async def in_own_thread(work: Callable[[EnvironmentSpec], Prepared], spec: EnvironmentSpec) -> Prepared:
    """What ``work`` makes of ``spec``, in a thread that waits for no other."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Prepared] = loop.create_future()

    def settle(result: Prepared | None, error: BaseException | None) -> None:
        if done.done():
            return
        if result is not None:
            done.set_result(result)
        else:
            done.set_exception(error or EnvironmentFault("nothing was prepared"))

    def run() -> None:
        result: Prepared | None = None
        failure: BaseException | None = None
        try:
            result = work(spec)
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, result, failure)

    _threads.do(run)
    return await done
