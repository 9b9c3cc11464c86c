"""Attacks by files: links, FIFOs, devices and marks of the file system, on the way in, out, and at the end."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from outer import Attack, Defence, Edit, Patch, Scene, Swap
from woodshed.errors import ImageFault, UsageError
from woodshed.model import Change, ChangeKind, ChangeSet, EnvironmentSpec
from woodshed.sandbox.native import archive, capture, landing, restore, trees, unpack
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.inside import frames
from woodshed.sandbox.native.places import Place

NATIVE = "woodshed.sandbox.native"


class Blobs:
    """Contents by their sha256, in memory."""

    def __init__(self, *contents: bytes) -> None:
        self.held = {hashlib.sha256(content).hexdigest(): content for content in contents}

    def put(self, content: bytes | BinaryIO) -> str:
        data = content if isinstance(content, bytes) else content.read()
        self.held[digest := hashlib.sha256(data).hexdigest()] = data
        return digest

    def open(self, sha256: str) -> BinaryIO:
        return io.BytesIO(self.held[sha256])


# -- 5: descriptors and directories ------------------------------------------------------------------------------------

SOCKETS = """
for fd in os.listdir("/proc/self/fd"):
    try:
        target = os.readlink("/proc/self/fd/" + fd)
    except OSError:
        continue
    if int(fd) > 2 and target.startswith("socket:"):
        hit(socket.socket(fileno=int(fd)).type == socket.SOCK_SEQPACKET and "the channel to the engine")
"""


async def _directory_of_a_descriptor(scene: Scene) -> str | None:
    box = await scene.box()
    for number in range(3, 40):
        listed = (await box.exec("ls", cwd=f"/proc/self/fd/{number}")).stdout.split()
        if listed == [b"u", b"w"]:
            return "the host's folder of the box"
    return None


# -- 6: the way out ----------------------------------------------------------------------------------------------------


async def _read(scene: Scene, target: str) -> bytes | None:
    box = await scene.box()
    await box.exec(["ln", "-s", target, "link"])
    try:
        return await box.read("link")
    except OSError:
        return None


async def _program_of_the_first_process(scene: Scene) -> str | None:
    content = await _read(scene, "/proc/self/exe")
    return "the host's file" if content and content.startswith(b"\x7fELF") else None


async def _maps_of_the_first_process(scene: Scene) -> str | None:
    content = await _read(scene, "/proc/self/maps")
    return content.decode()[:80] if content else None


async def _device(scene: Scene) -> str | None:
    return None if await _read(scene, "/dev/null") is None else "a device was read"


async def _pipe(scene: Scene) -> str | None:
    box = await scene.box()
    await box.exec("mkfifo pipe")
    try:
        await asyncio.wait_for(box.read("pipe"), 1)
    except TimeoutError:
        return "the first process waits for a writer"
    except OSError:
        pass
    return None


async def _swapped_while_captured(scene: Scene) -> str | None:
    """A directory becomes a link at the worst moment: when it has been looked at and is about to be opened."""
    box = await scene.box()
    await box.exec("mkdir d; echo own >d/secret")
    await box.kill_all()
    inside, blobs = box.world.folder / "u/workspace/d", Blobs()
    original = capture._Walk._open_directory

    def swap(walk: Any, parts: tuple[str, ...]) -> int:
        if parts[-1:] == ("d",):
            inside.rename(inside.with_name("was"))
            inside.symlink_to(scene.targets["fake"])
        return original(walk, parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture._Walk, "_open_directory", swap)
        try:
            await box.changes(blobs)
        except OSError:
            return None
    return "captured" if scene.targets["word"].encode() in blobs.held.values() else None


def _open_anyhow(top: int, path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_NOFOLLOW, dir_fd=top)


async def _marks_of_the_overlay(scene: Scene) -> str | None:
    """Marks that a later mount of what the box wrote would obey: opaque directories, redirects, whiteouts."""
    box = await scene.box()
    marks = ("opaque", "redirect", "metacopy", "origin", "whiteout", "whiteouts")
    script = "import os; os.mkdir('d'); open('f', 'w').close()\n" + "".join(
        f"try: os.setxattr({name!r}, 'user.{prefix}{mark}', b'y')\nexcept OSError: pass\n"
        for name in ("d", "f") for mark in marks for prefix in ("overlay.", "overlay.overlay."))
    await box.exec(["python3", "-c", script])
    for name in ("d", "f"):
        for mark in os.listxattr(box.world.folder / "u/workspace" / name):
            if mark in {f"user.overlay.{mark}" for mark in marks}:
                return mark
    return None


# -- 6: the way in -----------------------------------------------------------------------------------------------------


async def _upload_of_a_link(scene: Scene) -> str | None:
    """A hostile task folder holds a link to a host file."""
    folder = Path(scene.targets["fake"], "task")
    folder.mkdir(exist_ok=True)
    link = folder / "data"
    link.unlink(missing_ok=True)
    link.symlink_to(scene.targets["secret"])
    box = await scene.box()
    try:
        await box.upload(folder, "t")
        content = await box.read("t/data")
    except (OSError, UsageError):
        return None
    return "uploaded" if scene.targets["word"].encode() in content else None


async def _download_through_a_link(scene: Scene) -> str | None:
    """A sandbox whose first process is not ours any more sends a tree with a link, and then a file below the link."""
    outside, target = Path(scene.targets["fake"], "downloaded"), Path(scene.targets["fake"], "target")
    for folder in (outside, target):
        shutil.rmtree(folder, ignore_errors=True)
    outside.mkdir()

    def frame(kind: bytes, path: bytes, size: int = 0) -> bytes:
        return frames._HEAD.pack(kind, 0o755, len(path), size) + path

    link = os.fsencode(outside)
    sent = frame(b"d", b"") + frame(b"l", b"a", len(link)) + link
    sent += frame(b"f", b"a/planted", 0) + frames._PIECE.pack(0, 0) + frame(b"e", b"")
    with suppress(OSError):
        landing.land(frames.Frames(frames.Reader(io.BytesIO(sent).read)), target, 1 << 20)
    return "a file of the host" if list(outside.iterdir()) else None


async def _marks_in_a_snapshot(scene: Scene) -> str | None:
    """A snapshot from elsewhere carries a mark that overlayfs would obey: read another directory instead."""
    entry = tarfile.TarInfo(".")
    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    entry.pax_headers = {archive.XATTR + "user.overlay.redirect": "/etc"}
    blobs, target = Blobs(), Path(scene.targets["fake"], "layer")
    digest = blobs.put(entry.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    try:
        unpack.unpack(digest, blobs, target, archive.Room(10, 1000))
        return next((name for name in os.listxattr(target) if name.startswith("user.overlay")), None)
    except ImageFault:
        return None
    finally:
        shutil.rmtree(target, ignore_errors=True)


async def _restore_through_a_link(scene: Scene) -> str | None:
    """A forged change set plants a link and then a file below it."""
    outside, blobs = Path(scene.targets["fake"], "restored"), Blobs(b"planted")
    shutil.rmtree(outside, ignore_errors=True)
    outside.mkdir()
    changes = ChangeSet(changes=(
        Change(path="/workspace/out", kind=ChangeKind.SYMLINK, mode=0o777, target=str(outside)),
        Change(path="/workspace/out/planted", kind=ChangeKind.FILE, size=7, sha256=next(iter(blobs.held))),
    ))
    box = await scene.engine.create(EnvironmentSpec(), scene.attack.policy, restore=(changes, blobs))
    scene.boxes.append(box)
    return "a file of the host" if list(outside.iterdir()) else None


async def _removal_through_a_link(scene: Scene) -> str | None:
    """What a box leaves is removed; a link in it to a folder of the host is not gone through."""
    victim = Path(scene.targets["fake"], "victim")
    victim.mkdir(exist_ok=True)
    (victim / "file").touch()
    box = await scene.box()
    await box.exec(["ln", "-s", str(victim), "link"])
    await box.close()
    return None if (victim / "file").exists() else "removed on the host"


def _is_directory_after_links(name: str, parent: int) -> bool:
    return Path(f"/proc/self/fd/{parent}/{name}").is_dir()


# -- 7: a setuid file for someone on the host --------------------------------------------------------------------------


async def _setuid_for_the_host(scene: Scene) -> str | None:
    box = await scene.box()
    await box.exec("cp /usr/bin/id mine && chmod 4755 mine")
    return await asyncio.to_thread(_run_as_nobody, box)


def _run_as_nobody(box: NativeSandbox) -> str | None:
    public = Path("/mnt")  # of this place: the folders above a home may be closed, too, but that is luck
    subprocess.run(["mount", "--bind", box.world.folder.parents[1], public], check=True)
    try:
        path = public.joinpath(*box.world.folder.parts[-2:], "u/workspace/mine")
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", "sh", "-c", 'exec "$0"']
        shown = subprocess.run([*nobody, str(path)], capture_output=True, text=True, check=False).stdout
    finally:
        subprocess.run(["umount", "--lazy", public], check=True)
    return shown if "euid=0" in shown else None


_make = Place.box


def _open_to_all(place: Place, name: str) -> None:
    _make(place, name)
    for path in (place.path, place.path.parent):
        path.chmod(0o755)


FRAMES = f"{NATIVE}.inside.frames"
# -- 16: what could run on the host later ------------------------------------------------------------------------------

HOOKS = """
mkdir -p r/.git/hooks r/.vscode r/.husky r/.claude sub/.git
printf '#!/bin/sh\nid' >r/.git/hooks/post-checkout
printf '[core]\n\tfsmonitor = id\n' >r/.git/config
printf '{"tasks": []}' >r/.vscode/tasks.json
echo id >r/.envrc
echo id >r/.husky/pre-commit
echo '{"hooks": {}}' >r/.claude/settings.json
echo 'import os' >r/sitecustomize.py
ln -s /workspace/elsewhere sub/.git/hooks
"""
PLANTED = ("r/.git/hooks/post-checkout", "r/.git/config", "r/.vscode/tasks.json", "r/.envrc", "r/.husky/pre-commit",
           "r/.claude/settings.json", "r/sitecustomize.py", "sub/.git/hooks")


async def _unflagged(scene: Scene) -> str | None:
    """Files that git, an editor or a shell of the host would run, captured as if they were like any other."""
    box = await scene.box()
    await box.exec(HOOKS)
    await box.kill_all()
    changes = await box.changes(Blobs())
    captured = {change.path for change in changes.changes}
    flagged = {text.partition(": ")[0] for text in changes.flagged}
    return next((path for path in PLANTED if f"/workspace/{path}" in captured - flagged), None)


PUBLIC_FOLDERS: Defence = (Swap(f"{NATIVE}.places:Place", "box", _open_to_all),)
def _nothing(*_: Any) -> None:
    return None


def _none(*_: Any) -> list[Any]:
    return []


NOT_REGULAR = """    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
"""

ATTACKS = (
    Attack(5, "a socket left open", SOCKETS, ((Patch(
        "data, ancillary, _, _ = channel.recvmsg(_BUFFER, _SPACE, socket.MSG_CMSG_CLOEXEC)",
        "data, ancillary, _, _ = channel.recvmsg(_BUFFER, _SPACE)"),),)),
    Attack(5, "a directory left open", act=_directory_of_a_descriptor, defences=((Patch(
        "    _mask_proc()\n    for fd in fds:\n        os.close(fd)\n", "    _mask_proc()\n"),),)),
    Attack(6, "a link to the first process's program", act=_program_of_the_first_process, defences=((Patch(
        "flags | _SPARE, 0, syscalls.RESOLVE_NO_MAGICLINKS)", "flags | _SPARE, 0, 0)"),),)),
    Attack(6, "a link to the first process's maps", act=_maps_of_the_first_process, defences=((Patch(
        'if info.st_dev == os.stat("/proc").st_dev:', "if False:"),),)),
    Attack(6, "a link to a device", act=_device, defences=((Patch(NOT_REGULAR),),)),
    Attack(6, "a pipe where a file should be", act=_pipe, defences=((Patch(
        "_SPARE = os.O_NONBLOCK | os.O_NOCTTY", "_SPARE = os.O_NOCTTY"),),)),
    Attack(6, "a directory swapped for a link while it is captured", act=_swapped_while_captured, defences=((Swap(
        f"{NATIVE}.trees", "open_beneath", _open_anyhow),),)),
    Attack(6, "marks of the overlay", act=_marks_of_the_overlay, defences=((Patch('("userxattr", ""), ', ""),),)),
    Attack(6, "a link in an uploaded folder", act=_upload_of_a_link, defences=(
        (Edit(FRAMES, "                    info = os.stat(name, dir_fd=directory, follow_symlinks=False)\n",
              "                    info = os.stat(name, dir_fd=directory)\n"),),
        (Edit(FRAMES, "fd = syscalls.open_resolved(directory, name, _FILE, 0, resolve)",
              "fd = os.open(name, _FILE & ~os.O_NOFOLLOW, dir_fd=directory)"),))),
    Attack(6, "a link in a downloaded tree", act=_download_through_a_link, defences=((Edit(
        FRAMES, "    return syscalls.open_resolved(top, path, flags, 0, _BENEATH)\n",
        "    return os.open(path, flags & ~os.O_NOFOLLOW, dir_fd=top)\n"),),)),
    Attack(6, "marks of the overlay in an imported snapshot", act=_marks_in_a_snapshot, defences=((Edit(
        f"{NATIVE}.unpack", '            if name != key:\n                if not name.startswith("user.")'
                            ' or name.startswith("user.overlay."):\n',
        "            if name != key:\n                if False:\n"),),)),
    Attack(6, "a link in restored changes", act=_restore_through_a_link, defences=((Swap(
        f"{NATIVE}.restore", "_DIRECTORY", restore._DIRECTORY & ~os.O_NOFOLLOW),),)),
    Attack(6, "a link in what is removed", act=_removal_through_a_link, defences=(
        (Swap(f"{NATIVE}.trees", "_is_directory", _is_directory_after_links),),
        (Swap(f"{NATIVE}.trees", "_DIRECTORY", trees._DIRECTORY & ~os.O_NOFOLLOW),))),
    Attack(16, "files that the host runs later", act=_unflagged, defences=((
        Swap("woodshed.sandbox.artefacts", "reason", _nothing), Swap("woodshed.sandbox.artefacts", "rules_of", _none),
        Swap("woodshed.sandbox.artefacts", "link_reason", _nothing)),)),
    Attack(7, "a setuid file for someone on the host", act=_setuid_for_the_host, defences=(PUBLIC_FOLDERS,),
           root="an ordinary user's setuid file gives away nothing but himself"),
)  # fmt: skip
