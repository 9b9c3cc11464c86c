"""Changes → restore → changes is the identity, for any tree over any start; and what is hostile stays harmless."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from woodshed.errors import EnvironmentFault
from woodshed.model import Change, ChangeKind, ChangeSet, EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.conformance import MemoryBlobs
from woodshed.sandbox.images import Bind, Rootfs
from woodshed.sandbox.native import trees
from woodshed.sandbox.native.below import Below
from woodshed.sandbox.native.capture import capture
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.restore import apply

NAMES = st.sampled_from(["a", "b", "c", "ü", "sp ace", "new\nline", "odd\udcff", "-rf", "..."])
MODES = st.sampled_from([0o000, 0o400, 0o644, 0o700, 0o755, 0o777])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
# One step of work inside: (what, path, other path or content, mode).
STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "mkdir", "link", "remove", "move", "chmod", "hard"]), PATHS, PATHS, MODES),
    max_size=12,
)

WORKER = r"""
import json, os, shutil, sys
os.chdir(sys.argv[1])
for what, path, other, mode in json.load(sys.stdin):
    try:
        if what == "write":
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "w", errors="surrogateescape") as file: file.write(other)
            os.chmod(path, mode)
        elif what == "mkdir": os.makedirs(path)
        elif what == "link": os.symlink(other, path)
        elif what == "hard": os.link(other, path)
        elif what == "move": os.rename(path, other)
        elif what == "chmod": os.chmod(path, mode, follow_symlinks=False) if not os.path.islink(path) else None
        elif os.path.isdir(path) and not os.path.islink(path): shutil.rmtree(path)
        else: os.unlink(path)
    except (OSError, shutil.Error, NotImplementedError): pass
"""
LOOK = r"""
import hashlib, os, sys
os.chdir(sys.argv[1])
todo = ["."]
while todo:
    path = todo.pop()
    info = os.lstat(path)
    line = [path, oct(info.st_mode), str(info.st_uid)]
    if os.path.islink(path): line.append(os.readlink(path))
    elif os.path.isfile(path):
        try:
            with open(path, "rb") as file: line.append(hashlib.sha256(file.read()).hexdigest())
        except PermissionError: line.append("closed")
    else:
        try: todo += [path + "/" + name for name in sorted(os.listdir(path))]
        except PermissionError: line.append("closed")
    print(ascii(line))
"""


@dataclass
class Tiny:
    """The host's /usr over a root made by hand, with a start of its own at /work."""

    root: Path

    def prepare(self, spec: EnvironmentSpec) -> Rootfs:
        return Rootfs("sha256:tiny", (self.root,), (Bind(Path("/usr"), "/usr"),), {"PATH": "/usr/bin:/bin"}, "/bin/sh")


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[Path, Tiny, asyncio.Runner, NativeEngine]]:
    """One engine for the module, in a loop of its own; its folder needs a disk that knows user xattrs."""
    folder = Path(tempfile.mkdtemp(prefix="woodshed-trip-"))
    folder.chmod(0o755)
    root = folder / "root"
    for name in ("dev", "proc", "tmp", "usr", "root", "work/old/deep", "work/a"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    for name in ("work/b", "work/old/file", "work/old/deep/file", "work/a/b", "work/c"):
        (root / name).write_text(name)
    (root / "work" / "ü").symlink_to("b")
    with asyncio.Runner() as runner:
        runner.get_loop()
        engine = NativeEngine(folder / "home", images=Tiny(root))
        yield folder, Tiny(root), runner, engine
        runner.run(engine.close())
    shutil.rmtree(folder)


def python() -> str:
    found = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()), None)
    if found is None:
        pytest.skip("the host's /usr has no python3: apt install python3")
    return found


async def _trip(engine: NativeEngine, steps: object) -> tuple[ChangeSet, bytes, ChangeSet, bytes]:
    spec, limits, blobs = EnvironmentSpec(workdir="/work"), Limits(), MemoryBlobs()
    work = [python(), "-c", WORKER, "/work"]
    look = [python(), "-c", LOOK, "/work"]
    box = await engine.create(spec, SandboxPolicy(limits=limits))
    result = await box.exec(work, stdin=json.dumps(steps).encode())
    assert result.exit_code == 0, result
    await box.kill_all()
    first = await box.changes(blobs, roots=("/work",))
    seen = (await box.exec(look)).stdout
    await box.close()
    again = await engine.create(spec, SandboxPolicy(limits=limits), restore=(first, blobs))
    seen_again = (await again.exec(look)).stdout
    await again.kill_all()
    second = await again.changes(blobs, roots=("/work",))
    await again.close()
    return first, seen, second, seen_again


@given(steps=STEPS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_restored_changes_are_captured_again(
    world: tuple[Path, Tiny, asyncio.Runner, NativeEngine], steps: list[tuple[str, str, str, int]]
) -> None:
    """Whatever is done inside, a box restored from its changes looks the same and captures the same."""
    _, _, runner, engine = world
    first, seen, second, seen_again = runner.run(_trip(engine, steps))
    assert first == second
    assert seen == seen_again
    assert ChangeSet.model_validate(first.to_json()) == first


@pytest.fixture
def layer(tmp_path: Path) -> tuple[Path, Path]:
    """An upper directory and one below it."""
    lower, upper = tmp_path / "lower", tmp_path / "upper"
    (lower / "d").mkdir(parents=True)
    (lower / "d" / "f").write_text("f")
    (lower / "s").symlink_to("/etc")
    upper.mkdir()
    return upper, lower


def restored(changes: list[Change], layer: tuple[Path, Path], blobs: MemoryBlobs) -> None:
    apply(ChangeSet(changes=tuple(changes)), blobs, layer[0], [layer[1]])


def file(path: str, blobs: MemoryBlobs, content: bytes = b"x") -> Change:
    return Change(path=path, kind=ChangeKind.FILE, sha256=blobs.put(content), size=len(content))


@pytest.mark.parametrize("path", ["a/b", "", "/", "//a", "/a/../b", "/a/./b", "/..", "/a//b", "/a\0b", "/a/"])
def test_no_forged_path_is_restored(layer: tuple[Path, Path], path: str) -> None:
    """A path that no capture yields is refused before anything is written for it."""
    blobs = MemoryBlobs()
    with pytest.raises(EnvironmentFault, match="captured changes"):
        restored([file(path, blobs)], layer, blobs)
    assert list(layer[0].rglob("*")) == []


def test_a_change_without_a_place_is_left_out(layer: tuple[Path, Path], tmp_path: Path) -> None:
    """Below a link, planted or of the image, below a file and below a deletion nothing is written."""
    blobs, target = MemoryBlobs(), tmp_path / "target"
    target.mkdir()
    restored(
        [
            Change(path="/l", kind=ChangeKind.SYMLINK, target=str(target)), file("/l/x", blobs), file("/l/y/z", blobs),
            file("/s/x", blobs), file("/d/f/x", blobs), Change(path="/d/f", kind=ChangeKind.DELETED),
            file("/d/f/x", blobs), file("/new/x", blobs),
        ],
        layer, blobs,
    )  # fmt: skip
    assert list(target.iterdir()) == []
    made = {str(path.relative_to(layer[0])) for path in layer[0].rglob("*")}
    assert made == {"l", "d", "d/f", "new", "new/x"}
    assert stat.S_ISCHR((layer[0] / "d" / "f").lstat().st_mode)


def test_a_later_change_replaces_an_earlier_one(layer: tuple[Path, Path]) -> None:
    """The same path twice ends as the last says, in a link's place as in a file's, never through the link."""
    blobs = MemoryBlobs()
    link = Change(path="/x", kind=ChangeKind.SYMLINK, target="/etc/passwd")
    restored([link, file("/x", blobs, b"own")], layer, blobs)
    assert not (layer[0] / "x").is_symlink()
    assert (layer[0] / "x").read_bytes() == b"own"


def test_below_merges_layers_as_overlayfs_does(tmp_path: Path) -> None:
    """Upper layers win, whiteouts and opaque directories hide, a file hides a directory, links are not followed."""
    top, middle, low = (tmp_path / name for name in ("top", "middle", "low"))
    for path in ("top/o", "middle/d", "middle/o", "low/d/e", "low/o/p", "low/w", "low/h/i"):
        (tmp_path / path).mkdir(parents=True)
    (middle / "d" / "f").write_text("f")
    (low / "d" / "f").mkdir()
    (low / "w" / "x").write_text("x")
    (middle / "h").write_text("hides")
    (low / "link").symlink_to("d")
    os.mknod(top / "w", stat.S_IFCHR, 0)
    try:
        os.setxattr(top / "o", "user.overlay.opaque", b"y")
    except OSError:
        pytest.skip("this file system has no user xattrs: set TMPDIR to one that has")
    below = Below([top, middle, low])
    there = ["d", "d/e", "d/f", "o", "h", "link"]
    gone = ["o/p", "w", "w/x", "h/i", "d/f/g", "link/e", "none", "none/x"]
    assert [path for path in (*there, *gone) if below.find(tuple(path.split("/")))] == there
    found = below.find(("d", "f"))
    assert found is not None
    assert stat.S_ISREG(found.st_mode)


def test_a_capture_survives_what_a_hostile_tree_holds(tmp_path: Path) -> None:
    """Deep trees, FIFOs, sockets, endless sparse files and links to the host are named or data, never followed."""
    upper = tmp_path / "upper"
    (upper / "d").mkdir(parents=True)
    os.mkfifo(upper / "fifo")
    (upper / "root").symlink_to("/")
    (upper / "d" / "suid").write_text("x")
    (upper / "d" / "suid").chmod(0o6755)
    (upper / "z").mkdir()
    with (upper / "z" / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 42)
    here = os.open(upper, os.O_RDONLY)
    fd = os.dup(here)
    for _ in range(1200):
        os.mkdir("deeper", dir_fd=fd)
        deeper = os.open("deeper", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(fd)
    os.close(here)
    blobs = MemoryBlobs()
    changes = capture(upper, [], ["/"], Limits(), blobs)
    assert changes.over_limit == "disk_mb"
    assert {"/fifo: fifo", "/d/suid: setuid", "/d/suid: setgid", "over disk_mb"} <= set(changes.refused)
    assert any(entry.endswith(": too deep") for entry in changes.refused)
    kept = {change.path: change for change in changes.changes}
    assert kept["/root"].target == "/"
    assert kept["/d/suid"].mode == 0o755
    assert trees.remove(tmp_path / "upper")
    assert not upper.exists()


def test_flags_are_bounded_by_what_is_looked_into(tmp_path: Path) -> None:
    """Configurations too large, or too many to be read, are flagged by name; harmless ones before them are not."""
    upper = tmp_path / "upper"
    upper.mkdir()
    for number in range(20):
        (upper / f"{number:02}").mkdir()
        (upper / f"{number:02}" / "config").write_bytes(b"# harmless\n" + bytes(900_000))
    (upper / "large").mkdir()
    (upper / "large" / "config").write_bytes(b"# harmless\n" + bytes(2_000_000))
    (upper / ".envrc").symlink_to("elsewhere")
    changes = capture(upper, [], ["/"], Limits(), MemoryBlobs())
    flagged = [flag.partition(": ")[0] for flag in changes.flagged]
    assert flagged == ["/.envrc", *(f"/{number:02}/config" for number in range(9, 20)), "/large/config"]
