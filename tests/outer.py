"""An outer place for attacks: namespaces of its own with planted targets, where a weakened engine harms nobody.

An attack counts only where it succeeds once its defence is off. Both are tried in the same place, with the same
targets: the engine as it is, and one whose code was changed at one line or replaced at one name. The place is a process
of its own (``Place``) that is told which attack to run; nothing of the product knows of any of this.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import pkgutil
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import targets
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.images import Images
from woodshed.sandbox.images.rootfs import Bind, Rootfs
from woodshed.sandbox.native import forkserver, inside
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.inside import confine, syscalls

_TESTS = Path(__file__).parent
_INSIDE = Path(inside.__file__).parent
_PATIENCE_S = 25.0
_SPEC, _POLICY = EnvironmentSpec(), SandboxPolicy()

PRELUDE = """
import ctypes, ctypes.util, errno, fcntl, json, mmap, os, signal, socket, struct, subprocess, sys, time
T = json.loads(sys.argv[1])
NR = T["calls"]
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    number = NR[number] if isinstance(number, str) else number
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments] + [ctypes.c_long(0)] * 6
    result = libc.syscall(ctypes.c_long(number), *given[:6])
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def hit(evidence):
    if evidence is not False:
        print("HIT", evidence, flush=True)
        os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Patch:
    """``old`` stands exactly once in the code that runs inside; without this defence it reads ``new``."""

    old: str
    new: str = ""


@dataclass(frozen=True, slots=True)
class Swap:
    """The attribute ``name`` of ``module`` (``package.module`` or ``package.module:Class``), replaced by ``value``."""

    module: str
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Edit:
    """``old`` stands exactly once in ``module``, of our own side; without this defence it reads ``new``."""

    module: str
    old: str
    new: str = ""


Defence = tuple[Patch | Swap | Edit, ...]
"""What must change to take one defence away."""


@dataclass(slots=True)
class Scene:
    """Where an attack runs: an engine, and the targets."""

    home: Path
    images: _Images
    engine: NativeEngine
    targets: dict[str, Any]
    attack: Attack
    boxes: list[NativeSandbox] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    async def box(self) -> NativeSandbox:
        """A fresh sandbox, as the attack wants it."""
        box = await self.engine.create(self.attack.spec, self.attack.policy)
        self.boxes.append(box)
        return box

    def another(self) -> NativeEngine:
        """An engine of the attack's own, that nothing has started yet; the attack closes it."""
        return NativeEngine(self.home, images=self.images)

    async def run(self, script: str, **options: Any) -> str | None:
        """Run ``script`` inside; what it says it got, or None."""
        return await self.run_in(await self.box(), script, **options)

    async def run_in(self, box: NativeSandbox, script: str, **options: Any) -> str | None:
        """Run ``script`` in a box that stands already."""
        argv = ["python3", "-c", PRELUDE + script, json.dumps(self.targets)]
        result = await box.exec(argv, **options)
        self.said.append(result.stderr.decode(errors="replace")[-300:])
        for line in result.stdout.decode(errors="replace").splitlines():
            if line.startswith("HIT"):
                return line
        return None


Act = Callable[[Scene], Awaitable[str | None]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack of a family: a Python ``script`` that runs inside and calls ``hit()``, or what ``act`` does.

    ``defences`` are all that stop it; where there are several each of them alone does. ``root`` says why the attack
    needs an engine of root's, ``needs`` names facts of the place without which its control could not succeed.
    """

    family: int
    name: str
    script: str = ""
    defences: tuple[Defence, ...] = ()
    act: Act | None = None
    root: str | None = None
    needs: tuple[str, ...] = ()
    spec: EnvironmentSpec = _SPEC
    policy: SandboxPolicy = _POLICY

    async def attempt(self, scene: Scene) -> str | None:
        """What the attack got hold of, or None."""
        return await (self.act(scene) if self.act is not None else scene.run(self.script))


def gather() -> dict[str, Attack]:
    """Every attack of ``tests/security/attack_*.py`` by name."""
    found: dict[str, Attack] = {}
    for module in pkgutil.iter_modules([str(_TESTS / "security")]):
        if module.name.startswith("attack_"):
            for attack in importlib.import_module(f"security.{module.name}").ATTACKS:
                assert attack.name not in found, attack.name
                found[attack.name] = attack
    return found


def home_of(attack: Attack) -> str:
    """The file of an attack, below the repository."""
    for module in pkgutil.iter_modules([str(_TESTS / "security")]):
        if module.name.startswith("attack_") and attack in importlib.import_module(f"security.{module.name}").ATTACKS:
            return f"tests/security/{module.name}.py"
    raise KeyError(attack.name)


# -- the test's side ---------------------------------------------------------------------------------------------------


class Place:
    """The outer place: made on entering, gone with everything in it on leaving."""

    def __init__(self, home: Path) -> None:
        """``home`` holds the images and, in the place alone, the boxes."""
        self._home = home
        self._base = Path(tempfile.mkdtemp(prefix="woodshed-outer-", dir=home.parent))
        self._process: subprocess.Popen[bytes] | None = None
        self.facts: dict[str, Any] = {}
        self.said: list[str] = []
        """What the last attack's scripts wrote to standard error."""

    def _start(self) -> subprocess.Popen[bytes]:
        if shutil.which("unshare") is None:
            pytest.skip("no 'unshare' to make an outer place with: apt-get install util-linux")
        Images(self._home).prepare(EnvironmentSpec())  # out here: the place has no network to fetch anything from
        flags = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--ipc", "--uts"]
        flags += [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        argv = ["unshare", *flags, "--propagation", "private", "--", sys.executable, "-P", "-c",
                "import outer, sys; outer.serve(*sys.argv[1:])", str(self._home), str(self._base)]
        paths = [str(_TESTS), *(path for path in sys.path if path)]
        with (self._base / "log").open("wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                       env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
        self._process = process
        self.facts = self._answer(process)
        return process

    def _answer(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], 2 * _PATIENCE_S)
        line = process.stdout.readline() if ready else b""
        if not line:
            self.close_process()
            raise AssertionError(f"the outer place fell silent: {(self._base / 'log').read_text()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        assert "fault" not in answer, answer["fault"]
        return answer

    def lacks(self, attack: Attack) -> str | None:
        """Why the attack's control cannot succeed here, or None."""
        if self._process is None:
            self._start()
        if attack.root is not None and os.geteuid() != 0:
            return f"needs root: {attack.root}"
        return next((f"{need}: {self.facts[need]}" for need in attack.needs if self.facts[need] != ""), None)

    def attack(self, name: str, off: Sequence[int] = ()) -> str | None:
        """Attempt ``name`` with the defences of these indices switched off; what it got, or None."""
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps({"name": name, "off": list(off)}).encode() + b"\n")
        process.stdin.flush()
        answer = self._answer(process)
        self.said = answer["said"]
        got = answer["got"]
        assert got is None or isinstance(got, str)
        return got

    def close_process(self) -> None:
        """End the place; the next attack makes another."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()
            for end in (process.stdin, process.stdout):
                assert end is not None
                with suppress(BrokenPipeError):
                    end.close()

    def close(self) -> None:
        """End it and remove its folder."""
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(BrokenPipeError, subprocess.TimeoutExpired):
                self._process.stdin.close()
                self._process.wait(5)
        self.close_process()
        shutil.rmtree(self._base, ignore_errors=True)


# -- the side of the place ---------------------------------------------------------------------------------------------


def serve(home: str, base: str) -> None:
    """Be the place: read the names of attacks, answer what they got, until there are no more."""
    asyncio.run(_serve(Path(home), Path(base)))


async def _serve(home: Path, base: Path) -> None:
    attacks = gather()
    planted, facts = targets.plant(base)
    calls = confine.denied(syscalls.MACHINE) | _more_calls()
    planted["calls"] = calls
    images = _Images(home, base / "fake" / "bound")
    _say(facts)
    engine = NativeEngine(home, images=images)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        asked = json.loads(line)
        attack = attacks[asked["name"]]
        try:
            if asked["off"]:
                defences = tuple(part for index in asked["off"] for part in attack.defences[index])
                with weakened(defences, base):
                    weak = NativeEngine(home, images=images)
                    scene = Scene(home, images, weak, planted, attack)
                    got = await _attempt(scene)
                    await _within(weak.close())
            else:
                scene = Scene(home, images, engine, planted, attack)
                got = await _attempt(scene)
            _say({"got": got, "said": scene.said})
        except Exception as error:  # whatever it is, the test that asked has to show it
            _say({"fault": f"{type(error).__name__}: {error}"})
    await engine.close()


async def _attempt(scene: Scene) -> str | None:
    try:
        return await asyncio.wait_for(scene.attack.attempt(scene), _PATIENCE_S)
    finally:
        for box in scene.boxes:
            await _within(box.close())


async def _within(closing: Awaitable[None]) -> None:
    """An engine without a defence may be unable to end; the place's own end sees to that."""
    with suppress(TimeoutError):
        await asyncio.wait_for(closing, 5)


def _say(answer: dict[str, Any]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def _more_calls() -> dict[str, int]:
    """Numbers of calls that depend on their arguments, which the deny list has not."""
    column = 0 if syscalls.MACHINE == "x86_64" else 1
    pairs = {"clone": (56, 220), "unshare": (272, 97), "prlimit64": (302, 261), "ioctl": (16, 29)}
    return {name: pair[column] for name, pair in pairs.items()} | {"clone3": 435, "pidfd_open": 434}


class _Images:
    """The usual image, with a planted folder bound the way the host's own are."""

    def __init__(self, home: Path, bound: Path) -> None:
        self._images, self._bound = Images(home), bound

    def prepare(self, spec: EnvironmentSpec) -> Rootfs:
        """See :class:`woodshed.sandbox.images.Images`."""
        rootfs = self._images.prepare(spec)
        return replace(rootfs, binds=(*rootfs.binds, Bind(self._bound, "/srv")))


@contextmanager
def weakened(defences: Defence, base: Path) -> Iterator[None]:
    """Without these defences: engines made meanwhile start code with the patches, our own side has the swaps."""
    patches = [part for part in defences if isinstance(part, Patch)]
    with ExitStack() as stack:
        monkey = stack.enter_context(pytest.MonkeyPatch.context())
        edits = [part for part in defences if isinstance(part, Edit)]
        for name in dict.fromkeys(edit.module for edit in edits):
            stack.enter_context(_edited(name, [edit for edit in edits if edit.module == name]))
        for part in defences:
            if isinstance(part, Swap):
                module, _, owner = part.module.partition(":")
                where: object = importlib.import_module(module)
                where = getattr(where, owner) if owner else where
                monkey.setattr(where, part.name, part.value)
        if patches:
            code = base / secrets.token_hex(4)
            shutil.copytree(_INSIDE, code / "inside", ignore=shutil.ignore_patterns("__pycache__"))
            for patch in patches:
                apply(patch, code / "inside")
            monkey.setattr(forkserver, "CODE", code)
        yield


@contextmanager
def _edited(name: str, edits: Sequence[Edit]) -> Iterator[None]:
    """The module run anew, in its own namespace: what others hold of it finds the changed names there."""
    module = importlib.import_module(name)
    path, names = str(module.__file__), dict(vars(module))
    source = Path(path).read_text()
    for edit in edits:
        assert source.count(edit.old) == 1, f"a defence stands in {source.count(edit.old)} places: {edit.old!r}"
        source = source.replace(edit.old, edit.new)
    exec(compile(source, path, "exec"), vars(module))
    try:
        yield
    finally:
        vars(module).clear()
        vars(module).update(names)


def apply(patch: Patch, folder: Path) -> None:
    """Replace the one place where the defence stands. Raises AssertionError where it is gone or stands twice."""
    found = [path for path in sorted(folder.glob("*.py")) for _ in range(path.read_text().count(patch.old))]
    assert len(found) == 1, f"a defence stands in {len(found)} places, not in one: {patch.old!r}"
    found[0].write_text(found[0].read_text().replace(patch.old, patch.new))
