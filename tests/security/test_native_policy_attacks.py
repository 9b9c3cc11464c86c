"""Attacks on a policy from inside: on its directories, its command sets, its privileges.

Each is tried as the policy stands, where it fails, and with the one defence that it runs against taken out of the code
inside, where it succeeds; all within boxes, so that a success harms nobody.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outer import Patch, weakened
from woodshed.errors import ImageFault
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.images import Images
from woodshed.sandbox.native import policy as policies
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.engine import NativeEngine

ROOT = os.geteuid() == 0
HIT = b"HIT"
SPEC = EnvironmentSpec(setup=(
    "mkdir -p a/tests; echo true >a/tests/check; cp /usr/bin/printf tool; cp $(realpath $(ldd /bin/true |"
    " grep -o '/[^ ]*libc[.-][^ ]*' | head -1)) mine.so"))
"""A file to protect, a program in a writable place, and a library that an agent could have made."""

no_landlock = pytest.mark.skipif(
    "commands" not in policies.capabilities(), reason="this kernel has no Landlock: boot with lsm=landlock,…")

RESTRICT = Patch("            self._ruleset.restrict()\n", "            pass\n")
NOEXEC = Patch("        self._noexec: bool = rules[\"noexec\"]\n", "        self._noexec: bool = False\n")
SEAL = Patch("            syscalls.load_filter(confine.sealing_program(syscalls.MACHINE))\n", "            pass\n")
PROC = Patch('            _change("/proc", ATTR_RDONLY)  # a process', "            pass  # a process")
LOADER = Patch("programs.guarded(path), 0o555", 'open(path, "rb").read(), 0o555')
OWN_MOUNT = Patch("            if not os.statvfs(path).f_flag & os.ST_RDONLY:", "            if False:")
PINS = Patch("        pins = _pins(places)\n", "        pins: Places = {}\n")
READ = Patch("            syscalls.set_attributes(fd, ATTR_RDONLY, recursive=True)\n", "            pass\n")
DEPRIVE = Patch("            confine.deprive_root()\n", "            pass\n")
UNBIND = Patch("                confine.empty_bounding_set()\n            marks.join",
               "                pass\n            marks.join")

PYTHON = "import ctypes, os, sys\n"
MEMFD = PYTHON + """
number = {"x86_64": 319, "aarch64": 279}[os.uname().machine]
fd = ctypes.CDLL(None).syscall(number, b"x", 0)
os.write(fd, open("/usr/bin/printf", "rb").read()) if fd >= 0 else sys.exit(3)
os.execv(f"/proc/self/fd/{fd}", ["printf", "HIT"])
"""
DESCRIPTOR = PYTHON + 'os.execve(os.open("/usr/bin/printf", os.O_RDONLY), ["printf", "HIT"], {})'
MEMORY = PYTHON + """
address = ctypes.addressof(ctypes.CDLL(None).getpid) and ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
with open("/proc/self/mem", "r+b", buffering=0) as memory:
    memory.seek(address)
    code = memory.read(4)
    memory.seek(address)
    memory.write(code)  # the text of libc, which is read-only
print("HIT")
"""
MAPPED = PYTHON + """
import mmap
fd = os.open("/workspace/mine.so", os.O_RDONLY)
mmap.mmap(fd, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
print("HIT")
"""


@dataclass(frozen=True)
class Attack:
    """``commands`` run one after the other in a box under ``policy``; it hits where one of them prints HIT.

    ``defences`` are what stops it; with all of them off it hits.
    """

    name: str
    policy: dict[str, Any]
    commands: tuple[list[str], ...]
    defences: tuple[Patch, ...]
    root: bool = False


def allowing(*names: str, **more: Any) -> dict[str, Any]:
    return {"commands": {"allow": list(names)}, **more}


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


def python(script: str) -> list[str]:
    return ["/usr/bin/python3", "-I", "-c", script]


LOADERS = 'for l in /lib64/ld-*.so* /lib/ld-*.so*; do [ -e "$l" ] && "$l" /usr/bin/printf HIT; done'
READING = {"directories": [{"path": "/workspace/a/tests", "access": "read"}]}
DIRECT = (RESTRICT,)

ATTACKS = (
    Attack("a denied program", allowing("sh"), (sh("/usr/bin/printf HIT"),), DIRECT),
    Attack("the loader with a denied program", allowing("sh"), (sh(LOADERS),), (LOADER,)),
    Attack("a copy of the loader", allowing("sh", "cp"), (sh(
        "cp /lib64/ld-linux-x86-64.so.2 l || cp /lib/ld-linux-aarch64.so.1 l; ./l /usr/bin/printf HIT"),),
        (RESTRICT, NOEXEC, LOADER)),
    Attack("a copy of a denied program", allowing("sh", "cp", noexec=False), (sh(
        "for d in /workspace /tmp /dev/shm /run /root; do cp /usr/bin/printf $d/p; $d/p HIT; done"),), DIRECT),
    Attack("a copy under an allowed name", allowing("sh", "cp", "cat", noexec=False), (sh(
        "cp /usr/bin/printf cat; ./cat HIT; PATH=.:$PATH cat HIT"),), DIRECT),
    Attack("a link under an allowed name", allowing("sh", "ln", "cat"), (sh(
        "ln -s /usr/bin/printf cat; ./cat HIT"),), DIRECT),
    Attack("a hard link", allowing("sh", "ln", noexec=False), (sh(
        "ln tool hard; ./hard HIT; ln /usr/bin/printf other; ./other HIT"),), DIRECT),
    Attack("a script of an allowed interpreter", allowing("sh", "chmod", noexec=False), (sh(
        "echo '#!/bin/sh\necho HIT' >s; chmod 755 s; ./s"),), DIRECT),
    Attack("a renamed program", allowing("sh", "mv", noexec=False), (sh("mv tool cat; ./cat HIT"),), DIRECT),
    Attack("what lies in an allowed program's place", allowing("sh", "cp", "/workspace/tool", noexec=False), (
        sh("cp /usr/bin/env tool; PATH=/usr/bin ./tool | while read l; do case $l in PATH*) echo HIT;; esac; done"),),
        (OWN_MOUNT,)),
    Attack("a memfd", allowing("/usr/bin/python3"), (python(MEMFD),), (SEAL,)),
    Attack("a descriptor", allowing("/usr/bin/python3"), (python(DESCRIPTOR),), DIRECT),
    Attack("its own memory", allowing("/usr/bin/python3"), (python(MEMORY),), (PROC,)),
    Attack("a library of one's own", allowing("sh", "cat", "grep"), (sh(
        "LD_PRELOAD=/workspace/mine.so cat /proc/self/maps | grep -q 'r-xp.*workspace/mine.so' && echo HIT"),),
        (NOEXEC,)),
    Attack("code from a writable file", {"noexec": True}, (python(MAPPED),), (NOEXEC,)),
    Attack("a program in a writable place", {"noexec": True}, (sh(
        "for d in /workspace /tmp /dev/shm /run /root; do cp /usr/bin/printf $d/p; $d/p HIT; done"),), (NOEXEC,)),
    # Of a directory made in the box: one of the image cannot be renamed, only copied.
    Attack("a directory's parent renamed", {"directories": [
        {"path": "/workspace/n/tests", "access": "read"}, {"path": "/workspace/n/tests/made", "access": "write"}]}, (sh(
        "mv n b; mkdir -p n/tests; echo echo HIT >n/tests/check; sh n/tests/check"),), (PINS,)),
    Attack("a file that is to be read", READING, (sh("echo echo HIT >a/tests/check; sh a/tests/check"),), (READ,)),
    Attack("root's privileges", {"privileges": "none"}, (sh("chown 1:1 a; touch x; chgrp 7 x 2>&1;"
           " grep -q 'CapBnd:.0000000000000000' /proc/self/status || echo HIT"),), (DEPRIVE,)),
)


async def attempt(engine: NativeEngine, attack: Attack) -> str | None:
    """What it got; None where it failed."""
    box = await engine.create(SPEC, SandboxPolicy.parse(attack.policy))
    try:
        for command in attack.commands:
            result = await box.exec(command, timeout_s=60)
            if HIT in result.stdout:
                return result.stdout.decode(errors="replace")
        return None
    finally:
        await box.close()


@pytest.fixture
async def engine(shed_home: Path, images: Images) -> AsyncIterator[NativeEngine]:
    made = NativeEngine(shed_home, images=images)
    yield made
    await made.close()


@no_landlock
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "-"))
async def test_a_policy_holds(
    attack: Attack, engine: NativeEngine, shed_home: Path, images: Images, tmp_path: Path
) -> None:
    """The attack fails under the policy, and succeeds where the defence it runs against is not there."""
    assert await attempt(engine, attack) is None
    with weakened(attack.defences, tmp_path):
        weak = NativeEngine(shed_home, images=images)
        try:
            assert await attempt(weak, attack) is not None, "the control: without its defence it succeeds"
        finally:
            await weak.close()


async def _box(engine: NativeEngine, **policy: Any) -> NativeSandbox:
    return await engine.create(SPEC, SandboxPolicy.parse(policy))


async def _mounts(box: NativeSandbox) -> list[tuple[str, set[str], str]]:
    """Where, options, file system."""
    lines = (await box.exec(["cat", "/proc/self/mountinfo"])).stdout.decode().splitlines()
    return [(line.split()[4], set(line.split()[5].split(",")), line.split(" - ")[1].split()[0]) for line in lines]


@pytest.fixture
def image(tmp_path: Path) -> str:
    """An unpacked root of a few programs of this machine's with their libraries: all of it an overlay, writable."""
    if shutil.which("ldd") is None:
        pytest.skip("ldd is missing: apt install libc-bin")
    root = tmp_path / "image"
    for name in ("bin", "proc", "dev", "tmp", "root", "usr/bin"):
        (root / name).mkdir(parents=True)
    for name in ("sh", "cat", "cp", "mv", "ln", "mkdir", "printf"):
        program = os.path.realpath(shutil.which(name) or f"/bin/{name}")
        shutil.copy(program, root / "bin" / name)
        needed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        for library in re.findall(r"(/\S+)", needed):
            (root / library.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(library), root / library.lstrip("/"))
    for path in (tmp_path, *tmp_path.parents):
        if path.owner() == Path(tmp_path).owner():
            path.chmod(path.stat().st_mode | 0o055)
    return f"dir:{root}"


REPLACING = (
    'cp /bin/printf /bin/cat; /bin/cat HIT; mv /bin /b; mkdir -p /bin; cp /b/printf /bin/cat; PATH=/b:/bin; cat HIT;'
    ' /bin/cat HIT; /b/cat HIT; ln /bin/printf /bin/c; /bin/c HIT; for l in /lib64/ld-* /lib/ld-*; do'
    ' "$l" /bin/printf HIT; "$l" /b/printf HIT; cp "$l" /l; /l /bin/printf HIT; /l /b/printf HIT; done'
)


@no_landlock
@pytest.mark.parametrize("noexec", [None, False])
async def test_programs_of_a_writable_image_cannot_be_replaced(
    engine: NativeEngine, image: str, noexec: bool | None
) -> None:
    """Where /bin itself is the sandbox's to change, no content, name or directory of an allowed program can be."""
    spec = EnvironmentSpec(image=image)
    policy = SandboxPolicy.parse(allowing("sh", "cat", "cp", "mv", "ln", "mkdir", noexec=noexec))
    box = await engine.create(spec, policy)
    assert (await box.exec(["sh", "-c", "echo well | cat"])).stdout == b"well\n"
    result = await box.exec(["sh", "-c", REPLACING])
    assert HIT not in result.stdout, result
    plain = await engine.create(spec, SandboxPolicy())
    assert HIT in (await plain.exec(["sh", "-c", REPLACING])).stdout, "the control"


async def test_nothing_is_both_writable_and_executable(engine: NativeEngine) -> None:
    """With noexec every mount is read-only or noexec but single devices; without it the root is neither."""
    box = await _box(engine, noexec=True)
    for where, options, kind in await _mounts(box):
        if kind == "devtmpfs" and (where.startswith("/dev/") or where.startswith("/proc/")):
            continue
        assert options & {"ro", "noexec"}, where
    plain = await _box(engine)
    assert not next(options for where, options, _ in await _mounts(plain) if where == "/") & {"ro", "noexec"}


async def test_programs_still_work_where_nothing_writable_runs(engine: NativeEngine) -> None:
    """With noexec Python with its modules and pytest work, and a working directory among programs is writable."""
    box = await _box(engine, noexec=True)
    result = await box.exec("python3 -c 'import ssl, sqlite3, ctypes; print(1)' && pytest --version | cat; echo x >new")
    assert result.exit_code == 0, result
    there = await engine.create(EnvironmentSpec(workdir="/opt/work"), SandboxPolicy(noexec=True))
    assert (await there.exec("touch new && ! touch /opt/new")).exit_code == 0


@no_landlock
async def test_an_allowed_script_brings_its_interpreter_and_says_so(engine: NativeEngine) -> None:
    """A script's interpreter can be started too, env's as well, and the notes name it: the set is advisory then."""
    box = await engine.create(
        EnvironmentSpec(setup="printf '#!/usr/bin/env sh\\necho ran' >s; chmod 755 s"),
        SandboxPolicy.parse(allowing("/workspace/s")))
    assert (await box.exec(["/workspace/s"])).stdout == b"ran\n"
    assert any("'/workspace/s' is a script" in note and "interpreter" in note for note in box.notes), box.notes
    assert (await box.exec(["cat", "s"])).exit_code == 126


@no_landlock
async def test_large_answers_come_from_a_sealed_box_too(engine: NativeEngine) -> None:
    """A box without memfds still lists a directory that fits no packet, and takes large files."""
    box = await _box(engine, **allowing("cat"))
    for number in range(40):
        await box.write(f"/workspace/many/{'n' * 200}{number}", b"x" * number)
    plain = await box.list("/workspace/many")
    assert len(plain) == 40
    content = os.urandom(3_000_000)
    await box.write("/workspace/large", content)
    assert (await box.exec(["cat", "/workspace/large"], output_bytes=4_000_000)).stdout == content


async def test_other_users_have_an_empty_bounding_set(
    engine: NativeEngine, shed_home: Path, images: Images, tmp_path: Path
) -> None:
    """A command of a user other than 0 has no capability and can be given none; without the defence it could be."""
    if "users" not in engine.capabilities:
        pytest.skip("needs root: an ordinary user's sandbox has one user")

    async def bounding(of: NativeEngine) -> list[bytes]:
        told = (await (await _box(of)).exec("grep ^Cap /proc/self/status", user=1000)).stdout
        return [line.split()[1] for line in told.splitlines()]

    assert set(await bounding(engine)) == {b"0" * 16}
    with weakened((UNBIND,), tmp_path):
        weak = NativeEngine(shed_home, images=images)
        try:
            assert set(await bounding(weak)) != {b"0" * 16}, "the control"
        finally:
            await weak.close()


async def test_privileges_none_leaves_files_and_kills_to_us(engine: NativeEngine) -> None:
    """Where user 0 has no capability, we still read, write, upload, time out and end commands of every user."""
    box = await _box(engine, privileges="none")
    await box.write("/workspace/deep/er/file", b"x")
    user = 1000 if "users" in engine.capabilities else 0
    await box.exec("chmod 777 . && chmod 600 deep/er/file")
    assert await box.read("/workspace/deep/er/file") == b"x"
    assert (await box.exec("sleep 600", timeout_s=0.3, user=user)).timed_out
    process = await box.start("sleep 600", user=user)
    await box.kill_all()
    assert await process.wait() == 137


@no_landlock
async def test_links_of_a_hostile_image_lead_nowhere_new(engine: NativeEngine) -> None:
    """A rule's path that is a link protects what it leads to; one that leads into /proc is refused."""
    spec = EnvironmentSpec(
        setup="mkdir real; echo kept >real/file; ln -s real link; ln -s /proc/self trap; ln -s loop loop")

    async def ruled(**access: str) -> NativeSandbox:
        rules = [{"path": f"/workspace/{name}", "access": said} for name, said in access.items()]
        return await engine.create(spec, SandboxPolicy.parse({"directories": rules}))

    box = await ruled(link="read", loop="hidden")
    assert (await box.exec("echo x >real/file || echo x >link/file")).exit_code != 0
    with pytest.raises(ImageFault, match="the sandbox's own"):
        await ruled(trap="read")
    with pytest.raises(ImageFault, match="another rule makes write"):
        await ruled(link="read", real="write")
