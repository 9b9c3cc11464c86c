"""Archives of layers: the same bytes for the same files, whole again after unpacking, and refused where hostile."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from woodshed.errors import ImageFault
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy, SnapshotManifest
from woodshed.sandbox.conformance import MemoryBlobs
from woodshed.sandbox.images import Images
from woodshed.sandbox.native import archive, snapshots, unpack
from woodshed.sandbox.native.archive import Room
from woodshed.sandbox.native.below import OPAQUE
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.layers import Layer

SPEC, POLICY = EnvironmentSpec(), SandboxPolicy()


@pytest.fixture
async def engine(shed_home: Path, images: Images) -> AsyncIterator[NativeEngine]:
    made = NativeEngine(shed_home, images=images)
    yield made
    await made.close()


@pytest.fixture
async def box(engine: NativeEngine) -> NativeSandbox:
    return await engine.create(SPEC, POLICY)


async def out(box: NativeSandbox, command: str) -> str:
    result = await box.exec(command)
    assert result.exit_code == 0, result
    return result.stdout.decode()


def kept(home: Path) -> list[str]:
    """Layers that lie in the home's engines."""
    return sorted(path.name for path in (home / "sandboxes").glob("*/layers/*"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A layer with everything a layer can have."""
    top = tmp_path / "layer"
    (top / "d/empty").mkdir(parents=True)
    (top / "d/f").write_bytes(b"x" * 3000)
    (top / "d/link").symlink_to("../f" + "/o" * 150)
    (top / "n\u00fc\udcff new\nline").write_text("odd")
    (top / ".wh.literal").write_text("a file")
    os.link(top / "d/f", top / "hard")
    os.mknod(top / "gone", stat.S_IFCHR, 0)
    os.mkfifo(top / "pipe")
    os.setxattr(top / "d/empty", OPAQUE, b"y")
    os.setxattr(top / "d/f", "user.note", b"\xff\0n\n")
    os.utime(top / "d/f", ns=(0, 1_234_567_890_123_456_789))
    (top / "long").mkdir()
    os.setxattr(top / "long", "user.note", b"")
    (top / "long" / ("n" * 250)).mkdir()
    (top / "d/f").chmod(0o4755)
    (top / "d/empty").chmod(0o1711)
    (top / "d").chmod(0o500)
    return top


def tell(top: Path) -> list[tuple[object, ...]]:
    """Everything about a layer but what an archive leaves out."""
    found: list[tuple[object, ...]] = []
    for path in sorted(top.rglob("*")):
        info = path.lstat()
        kind, mode = stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode) & 0o1777
        if kind in (stat.S_IFIFO, stat.S_IFCHR):
            found.append((str(path.relative_to(top)), "hidden"))
            continue
        opaque = OPAQUE in os.listxattr(path, follow_symlinks=False)
        content = path.read_bytes() if kind == stat.S_IFREG else str(path.readlink()) if kind == stat.S_IFLNK else ""
        notes = "" if kind == stat.S_IFLNK or "user.note" not in os.listxattr(path) else os.getxattr(path, "user.note")
        found.append((str(path.relative_to(top)), kind, mode, info.st_mtime_ns, opaque, content, info.st_nlink, notes))
    return found


def test_an_archive_is_the_layer(tree: Path, tmp_path: Path) -> None:
    """Packed and unpacked a layer is the same, packed again the same bytes; setuid bits and pipes are left out."""
    blobs = MemoryBlobs()
    packed = archive.pack(Layer(tree), Limits(), blobs)
    assert packed.sha256 == archive.digest(Layer(tree))
    assert packed.size == len(blobs.content[packed.sha256])
    unpack.unpack(packed.sha256, blobs, tmp_path / "again", Room.of(Limits()))
    assert tell(tmp_path / "again") == tell(tree)
    assert (tmp_path / "again/d/f").samefile(tmp_path / "again/hard")
    assert archive.digest(Layer(tmp_path / "again")) == packed.sha256
    with tarfile.open(fileobj=blobs.open(packed.sha256)) as tar:
        names = tar.getnames()
    assert {".", "d", ".wh.gone", ".wh.pipe", "d/empty/.wh..wh..opq"} < set(names)


def test_a_large_layer_is_no_archive(tree: Path) -> None:
    """What exceeds the limits, holes included, is refused when it is packed."""
    with pytest.raises(OSError, match="more than the limits"):
        archive.pack(Layer(tree), Limits(files=5), MemoryBlobs())
    with (tree / "hole").open("wb") as file:
        file.truncate(2 << 20)
    with pytest.raises(OSError, match="more than the limits"):
        archive.pack(Layer(tree), Limits(disk_mb=1), MemoryBlobs())


def entry(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode = kind, 0o644
    for field, value in fields.items():
        setattr(made, field, value)
    return made


TOP, SUB = entry(".", tarfile.DIRTYPE, mode=0o755), entry("d", tarfile.DIRTYPE, mode=0o755)
HOSTILE = {
    "absolute": [TOP, entry("/etc/x")],
    "dots": [TOP, entry("d/../../x")],
    "no-parent": [TOP, entry("d/x")],
    "no-top": [entry("x")],
    "second-top": [TOP, SUB, TOP],
    "through-a-link": [TOP, entry("d", tarfile.SYMTYPE, linkname="/tmp"), entry("d/x")],
    "directory-over-link": [TOP, entry("d", tarfile.SYMTYPE, linkname="/tmp"), SUB, entry("d/x")],
    "link-out": [TOP, entry("x", tarfile.LNKTYPE, linkname="../../secret")],
    "link-to-link": [TOP, entry("l", tarfile.SYMTYPE, linkname="/etc/passwd"),
                     entry("x", tarfile.LNKTYPE, linkname="l")],
    "link-to-nothing": [TOP, entry("x", tarfile.LNKTYPE, linkname="y")],
    "device": [TOP, entry("x", tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "block": [TOP, entry("x", tarfile.BLKTYPE)],
    "pipe": [TOP, entry("x", tarfile.FIFOTYPE)],
    "setuid": [TOP, entry("x", mode=0o4755)],
    "owner": [TOP, entry("x", uid=70000)],
    "twice": [TOP, entry("x"), entry("x")],
    "whiteout-of-dots": [TOP, entry(".wh...")],
    "whiteout-of-nothing": [TOP, entry(".wh.")],
    "whiteout-with-contents": [TOP, entry(".wh.x", size=3)],
    "long-name": [TOP, entry("n" * 300)],
    "nul": [TOP, entry("x", pax_headers={"path": "a\0b"})],
    "overlay-attribute": [TOP, entry("x", pax_headers={"SCHILY.xattr.user.overlay.redirect": "/x"})],
    "trusted-attribute": [TOP, entry("x", pax_headers={"SCHILY.xattr.trusted.x": "1"})],
    "sparse": [TOP, entry("x", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}, size=512)],
    "time": [TOP, entry("x", pax_headers={"mtime": "9e99"})],
    "huge-header": [TOP, entry("x", pax_headers={"comment": "c" * (3 << 20)})],
    "too-many": [TOP, *(entry(f"f{number}") for number in range(101))],
    "too-large": [TOP, entry("x", size=2 << 20)],
    "negative": [TOP, entry("x", pax_headers={"size": "-512"})],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused(name: str, tmp_path: Path) -> None:
    """Each is an ImageFault, and nothing is left or touched, in the layer or beside it."""
    buffer = io.BytesIO()
    for made in HOSTILE[name]:
        buffer.write(made.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        buffer.write(b"\0" * (made.size + -made.size % 512))
    buffer.write(b"\0" * 1024)
    (tmp_path / "secret").write_text("s")
    blobs = MemoryBlobs()
    sha256 = blobs.put(buffer.getvalue())
    with pytest.raises(ImageFault):
        unpack.unpack(sha256, blobs, tmp_path / "layer", Room(100, 1 << 20))
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert (tmp_path / "secret").stat().st_nlink == 1


def test_a_plain_archive_is_taken(tmp_path: Path) -> None:
    """The control of the test above: the same entries without their malice make a layer."""
    buffer = io.BytesIO()
    for made in (TOP, SUB, entry("d/x"), entry("d/l", tarfile.SYMTYPE, linkname="/etc/passwd"), entry(".wh.gone"),
                 entry("x", tarfile.LNKTYPE, linkname="d/x")):
        buffer.write(made.tobuf(tarfile.PAX_FORMAT))
    blobs = MemoryBlobs()
    unpack.unpack(blobs.put(buffer.getvalue() + b"\0" * 1024), blobs, tmp_path / "layer", Room(100, 1 << 20))
    assert sorted(path.name for path in (tmp_path / "layer").rglob("*")) == ["d", "gone", "l", "x", "x"]


def test_owners_are_kept_where_they_can_be(tmp_path: Path) -> None:
    """A root engine keeps them; an ordinary user's says that it does not."""
    blobs = MemoryBlobs()
    parts = [made.tobuf(tarfile.PAX_FORMAT) for made in (TOP, entry("x", uid=7, gid=9))]
    exact = unpack.unpack(blobs.put(b"".join(parts) + b"\0" * 1024), blobs, tmp_path / "layer", Room(9, 9))
    info = (tmp_path / "layer/x").stat()
    assert exact == ((info.st_uid, info.st_gid) == (7, 9)) == (os.geteuid() == 0)


async def test_adopted_layers_are_shared(engine: NativeEngine, box: NativeSandbox, shed_home: Path) -> None:
    """One archive, adopted twice at once, lies there once; it goes with the second."""
    await out(box, "echo x >f")
    blobs = MemoryBlobs()
    manifest = await (await box.snapshot()).export(blobs)
    await box.close()
    before = len(kept(shed_home))
    first, second = await asyncio.gather(*(engine.adopt(manifest, blobs, SPEC) for _ in range(2)))
    assert len(kept(shed_home)) == before + 1
    await first.release()
    (fork,) = await engine.fork(second)
    assert await out(fork, "cat f") == "x\n"
    await fork.close()
    await second.release()
    assert len(kept(shed_home)) == before


async def test_equal_layers_are_one(engine: NativeEngine, box: NativeSandbox) -> None:
    """What was done, undone and done again is two equal layers, of which an archive has one; no change is no layer."""
    taken, make = [], "touch -d @1 f . .."
    for command in (make, "rm f; touch -d @1 . ..", make, "true"):
        await out(box, f"cd /workspace && {command}")
        taken.append(await box.snapshot())
    assert taken[-1].layers == taken[-2].layers
    assert len(taken[-1].layers) == 3
    blobs = MemoryBlobs()
    manifest = await taken[-1].export(blobs)
    assert len(manifest.layers) == len(blobs.content) == 2
    adopted = await engine.adopt(manifest, blobs, SPEC)
    assert adopted.digest == manifest.digest == taken[-1].digest
    (fork,) = await engine.fork(adopted)
    assert await out(fork, "ls") == "f\n"


@pytest.mark.parametrize("change", [
    {"version": 2}, {"image_digest": "sha256:0"}, {"digest": "sha256:0"}, {"layers": ("../../etc",)},
    {"layers": ("0" * 64,) * 2}, {"layers": tuple(f"{number:064}" for number in range(250))},
])
async def test_a_manifest_must_be_true(engine: NativeEngine, box: NativeSandbox, change: dict[str, object]) -> None:
    """Another version, image or digest, or layers that are none, are an ImageFault."""
    blobs = MemoryBlobs()
    manifest: SnapshotManifest = await (await box.snapshot()).export(blobs)
    false = manifest.model_copy(update=change)
    if "layers" in change:
        false = false.model_copy(update={"digest": snapshots._digest(false.image_digest, false.layers)})
    with pytest.raises(ImageFault):
        await engine.adopt(false, blobs, SPEC)
