"""Images of containers: layouts and archives in, layers shared and checked, deletions kept, what they say kept."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import ocikit as oci
from ocikit import E
from woodshed.dockerfile.stages import machine
from woodshed.errors import ImageFault, UsageError
from woodshed.model import EnvironmentSpec, SandboxPolicy, Upload
from woodshed.sandbox.images import Images
from woodshed.sandbox.images.crossing import Crossing
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.ids import privileged

pytestmark = pytest.mark.skipif(not oci.has_busybox(), reason=oci.NO_BUSYBOX)


class Shed:
    """An engine with its images, and what stands in a sandbox of one."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.engine = NativeEngine(home)
        self.images = Images(home, None, Crossing(self.engine, asyncio.get_running_loop()))

    async def said(self, image: str, command: str, **spec: object) -> str:
        box = await self.engine.create(EnvironmentSpec(image=image, **spec), SandboxPolicy())
        try:
            done = await box.exec(command)
            return (done.stdout + done.stderr).decode()
        finally:
            await box.close()


@pytest.fixture
async def shed(tmp_path: Path) -> AsyncIterator[Shed]:
    made = Shed(tmp_path / "home")
    yield made
    made.images.close()
    await made.engine.close()


@pytest.fixture(scope="session")
def base() -> bytes:
    return oci.busybox_layer()


@pytest.mark.parametrize("pack", ["gzip", "tar", "zstd"])
async def test_a_layout_becomes_a_sandbox(shed: Shed, base: bytes, tmp_path: Path, pack: str) -> None:
    """Layers in any compression, with the image's variables."""
    if pack == "zstd":
        pytest.importorskip("zstandard", reason="needs the extra zstd (pip install 'woodshed[zstd]')")
    image = oci.layout(tmp_path / "l", base, inner={"Env": ["PATH=/bin", "GREETING=hello there"]}, pack=pack)
    assert await shed.said(image, "echo $GREETING; cat /etc/group | head -1") == "hello there\nroot:x:0:\n"


async def test_layouts_and_archives_as_files(shed: Shed, base: bytes, tmp_path: Path) -> None:
    """A layout as a tar, and an archive of ``docker save``: the same files, the same layers."""
    oci.layout(tmp_path / "l", base)
    layout = oci.tarball(tmp_path / "l", tmp_path / "l.tar")
    saved = oci.saved(tmp_path / "s.tar", base, tag="made:7")
    assert await shed.said(f"oci:{layout}", "cat /etc/group") == await shed.said(f"archive:{saved}", "cat /etc/group")
    assert await shed.said(f"archive:{saved}:made:7", "echo ok") == "ok\n"
    whole = [name for name in shed.images.layers.sizes() if (shed.images.layers.path(name) / "bin/busybox").exists()]
    assert len(whole) == 1


async def test_deletions_hide_what_lies_below(shed: Shed, base: bytes, tmp_path: Path) -> None:
    """A file, a folder and everything of a folder are gone; what the deleting layer holds itself is there."""
    lower = oci.layer(oci.directory("d"), E("d/one", content=b"1"), E("d/two", content=b"2"), oci.directory("gone"),
                      E("gone/x", content=b"x"), oci.directory("all"), E("all/old", content=b"o"),
                      oci.directory("both"), E("both/old", content=b"o"))
    upper = oci.layer(oci.directory("d"), E("d/.wh.one"), E(".wh.gone"), oci.directory("all"), E("all/.wh..wh..opq"),
                      E("all/new", content=b"n"), E(".wh.both"), oci.directory("both"), E("both/new", content=b"n"),
                      E(".wh..wh.aufs", content=b"ignored"), E("d/.wh.never-was"))
    said = await shed.said(oci.layout(tmp_path / "l", base, lower, upper), "cd / && ls -a d all both gone")
    assert said == ("all:\n.\n..\nnew\n\nboth:\n.\n..\nnew\n\nd:\n.\n..\ntwo\n"
                    "ls: gone: No such file or directory\n")


async def test_a_layer_that_deletes_everything(shed: Shed, base: bytes, tmp_path: Path) -> None:
    """A mark of opacity at the top hides all layers below, and what its own layer and those above hold is there."""
    lower = oci.layer(oci.directory("old"), E("old/file", content=b"o"))
    fresh = oci.layer(E(".wh..wh..opq"), *(E(f"bin/{name}", content=oci.BUSYBOX.read_bytes(), mode=0o755)
                                           for name in ("sh", "ls")))
    image = oci.layout(tmp_path / "l", base, lower, fresh, oci.layer(E("above", content=b"a")))
    assert (await shed.said(image, "ls -d /old /above /etc/group /bin/* 2>/dev/null")).split() == [
        "/above", "/bin/ls", "/bin/sh"]


async def test_modes_owners_and_times(shed: Shed, base: bytes, tmp_path: Path) -> None:
    """Modes and times are the archive's; owners too where the engine has users, else everything is root's."""
    own = oci.layer(oci.directory("o", 0o2770, 42), E("o/f", content=b"x", mode=0o4751, uid=1000, gid=50),
                    E("o/l", "link", to="f", uid=7), E("o/h", "hard", to="o/f"), E("o/p", "fifo", mode=0o620),
                    E("o/high", content=b"", uid=70000), oci.directory("shut", 0o000), E("shut/in", content=b"i"))
    said = await shed.said(oci.layout(tmp_path / "l", base, own),
                           "cd /o && stat -c '%n %a %u %g %Y' f h p . && stat -c '%u' l high && cat /shut/in")
    f = "4751 1000 50 1700000000" if privileged() else "4751 0 0 1700000000"
    lines = said.splitlines()
    assert lines[:2] == [f"f {f}", f"h {f}"]
    assert lines[2].startswith("p 620 0 0")
    assert lines[3] == (". 2770 42 42 1700000000" if privileged() else ". 2770 0 0 1700000000")
    assert lines[4:] == (["7", "0", "i"] if privileged() else ["0", "0", "i"])


async def test_layers_are_shared(shed: Shed, base: bytes, tmp_path: Path) -> None:
    """Two images with a layer in common have it once; the second unpacks its own alone."""
    one = oci.layout(tmp_path / "a", base, oci.layer(E("one", content=b"1")))
    two = oci.layout(tmp_path / "b", base, oci.layer(E("two", content=b"2")))
    images = [await asyncio.to_thread(shed.images.containers.get, image) for image in (one, two)]
    assert images[0].layers[-1] == images[1].layers[-1]
    assert len({*images[0].layers, *images[1].layers}) == 3


async def test_tags_choose(shed: Shed, base: bytes, tmp_path: Path) -> None:
    """Of several images in a layout the tag chooses; an unknown one is refused with those there are."""
    layout = oci.Layout(tmp_path / "l")
    for tag in ("one", "two"):
        layout.image([base, oci.layer(E("tag", content=tag.encode()))], tag=tag)
    assert await shed.said(f"oci:{tmp_path / 'l'}:two", "cat /tag") == "two"
    with pytest.raises(UsageError, match=r"holds no image 'latest'.*one, two"):
        await shed.said(f"oci:{tmp_path / 'l'}", "true")


async def test_an_index_is_searched_for_this_machine(shed: Shed, base: bytes, tmp_path: Path) -> None:
    """Of an image for several machines ours is taken; where there is none the others are named."""
    layout = oci.Layout(tmp_path / "l")
    ours = layout.image([base], tag="x")
    layout.entries = []
    for tag, platforms in (("ok", ["s390x", machine()]), ("no", ["s390x"])):
        listed = [{**ours, "platform": {"os": "linux", "architecture": name}} for name in platforms]
        index = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
                            "manifests": listed}).encode()
        layout.add(layout.blob(index, "application/vnd.oci.image.index.v1+json"), tag)
    assert await shed.said(f"oci:{tmp_path / 'l'}:ok", "echo ok") == "ok\n"
    with pytest.raises(ImageFault, match="linux/s390x"):
        await shed.said(f"oci:{tmp_path / 'l'}:no", "true")


async def test_tmp_and_run_are_the_images_own(shed: Shed, base: bytes, tmp_path: Path) -> None:
    """What an image has in /tmp and /run is there, and can be written beside."""
    own = oci.layer(oci.directory("tmp", 0o1777), E("tmp/given", content=b"g"), oci.directory("run"),
                    E("run/given", content=b"r"))
    assert await shed.said(oci.layout(tmp_path / "l", base, own), "cat /tmp/given /run/given; touch /tmp/n && ls /tmp",
                           ) == "grgiven\nn\n"


async def test_a_snapshot_keeps_tmp(shed: Shed, base: bytes, tmp_path: Path) -> None:
    """/tmp of an image of a container is on disk, and so part of a snapshot and of what is forked from it."""
    spec = EnvironmentSpec(image=oci.layout(tmp_path / "l", base))
    box = await shed.engine.create(spec, SandboxPolicy())
    await box.exec("echo kept > /tmp/x")
    snapshot = await box.snapshot()
    await box.exec("echo later > /tmp/x")
    (fork,) = await shed.engine.fork(snapshot)
    assert (await fork.exec("cat /tmp/x")).stdout == b"kept\n"
    for one in (box, fork):
        await one.close()
    await snapshot.release()


async def test_uploads_lie_over_an_image(shed: Shed, base: bytes, tmp_path: Path) -> None:
    """An upload into a folder of the image leaves the folder's mode and owner as they are."""
    (tmp_path / "up").mkdir()
    (tmp_path / "up/f").write_text("mine")
    image = oci.layout(tmp_path / "l", base, oci.layer(oci.directory("site", 0o750, 1000), E("site/old", content=b"o")))
    said = await shed.said(image, "cat /site/f /site/old; stat -c '%a %u' /site", workdir="/site",
                           uploads=(Upload(source=tmp_path / "up", target="/site"),))
    assert said == ("mineo750 1000\n" if privileged() else "mineo750 0\n")


async def test_names_stay_until_they_are_collected(shed: Shed, base: bytes, tmp_path: Path) -> None:
    """A name given once is an image everywhere, by its id as well; without its layers it is incomplete."""
    image = oci.layout(tmp_path / "l", base)
    made = await asyncio.to_thread(shed.images.containers.pull, image, "mine:1")
    assert await shed.said("mine:1", "echo ok") == "ok\n"
    assert await shed.said(f"id:{made.id}", "echo ok") == "ok\n"
    (named,) = shed.images.containers.shelf.all()
    assert (named.name, named.id, named.complete) == ("docker.io/library/mine:1", made.id, True)
    shed.images.layers.path(made.layers[0]).rename(tmp_path / "taken")
    assert not shed.images.containers.shelf.all()[0].complete
    assert shed.images.containers.shelf.named(named.name) is None
    assert shed.images.containers.shelf.forget_incomplete() == [named.name]
    assert shed.images.containers.shelf.all() == []


async def _fails(shed: Shed, image: str, why: str) -> None:
    with pytest.raises((ImageFault, UsageError), match=why):
        await asyncio.to_thread(shed.images.containers.get, image)
    left = [name for name in shed.images.layers.sizes() if name]
    assert not any((shed.images.layers.path(name) / "bin/busybox").exists() for name in left)


async def test_every_digest_is_checked(shed: Shed, base: bytes, tmp_path: Path) -> None:
    """A changed manifest, configuration, stored layer or plain tar is none of ours, and leaves no layer."""
    image = oci.layout(tmp_path / "l", base)
    blobs = tmp_path / "l/blobs/sha256"
    for path in sorted(blobs.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[:-2] + b"xx")
        await _fails(shed, image, "is something else|no gzip stream")
        path.write_bytes(whole)
        path.rename(tmp_path / "away")
        await _fails(shed, image, "missing")
        (tmp_path / "away").rename(path)
    other = oci.Layout(tmp_path / "m")
    other.image([base], settings=oci.config([base + b"\0" * 512]))
    await _fails(shed, f"oci:{tmp_path / 'm'}", "not what the configuration says")


@pytest.mark.parametrize(("change", "why"), [
    ({"os": "windows"}, "windows/"), ({"architecture": "mips"}, "linux/mips"), ({"rootfs": {}}, "no sha256"),
    ({"rootfs": {"diff_ids": []}}, "0 layers"), ({"rootfs": {"diff_ids": ["md5:x"]}}, "no sha256"),
    ({"config": []}, None), ({"config": "x"}, "is none"), ({"config": {"Env": 3}}, "no list"),
    ({"config": {"Cmd": [1]}}, "no list"),
])
async def test_configurations_that_are_none(
    shed: Shed, base: bytes, tmp_path: Path, change: dict[str, object], why: str | None
) -> None:
    """A configuration of another machine or shape is refused; an empty one is fine."""
    settings = json.dumps({**json.loads(oci.config([base])), **change}).encode()
    oci.Layout(tmp_path / "l").image([base], settings=settings)
    if why is None:
        assert await shed.said(f"oci:{tmp_path / 'l'}", "echo ok") == "ok\n"
    else:
        await _fails(shed, f"oci:{tmp_path / 'l'}", why)


@pytest.mark.parametrize(("image", "why"), [
    ("oci:", "no file or folder"), ("oci:/nowhere", "no file or folder"), ("archive:/nowhere:tag", "no file or folder"),
    ("oci:{tmp}", "has no index.json"), ("archive:{tmp}", "has no manifest.json"), ("oci:{tmp}/text", "no plain tar"),
    ("id:abc", "no such image"), ("id:" + "a" * 64, "no such image"), ("id:../../etc", "no such image"),
])
async def test_sources_that_are_none(shed: Shed, tmp_path: Path, image: str, why: str) -> None:
    """What is no layout or archive, and an id of nothing."""
    (tmp_path / "text").write_text("just text\n" * 100)
    await _fails(shed, image.format(tmp=tmp_path), why)


async def test_damaged_streams(shed: Shed, base: bytes, tmp_path: Path) -> None:
    """A layer that is cut short, has something behind it, or is no tar at all is refused, not half unpacked."""
    for number, tar in enumerate([base[:700_000], b"just text" * 1000, b"", base[:512 * 3]]):
        oci.Layout(tmp_path / str(number)).image([tar])
        await _fails(shed, f"oci:{tmp_path / str(number)}", "ends early|no tar archive|is damaged")


async def test_an_image_without_mount_points_gets_them(shed: Shed, tmp_path: Path) -> None:
    """An image of one program has no /proc, /dev or /tmp; where a file stands in their place it is refused."""
    alone = oci.layer(E("busybox", content=oci.BUSYBOX.read_bytes(), mode=0o755))
    box = await shed.engine.create(EnvironmentSpec(image=oci.layout(tmp_path / "l", alone)), SandboxPolicy())
    done = await box.exec(["/busybox", "ls", "/"])
    await box.close()
    assert done.stdout.split() == [b"busybox", b"dev", b"proc", b"root", b"tmp", b"workspace"]
    odd = oci.layout(tmp_path / "m", alone, oci.layer(E("proc", content=b"a file")))
    with pytest.raises(ImageFault, match="/proc of the image is no directory"):
        await shed.engine.create(EnvironmentSpec(image=odd), SandboxPolicy())


async def test_nothing_is_left_of_a_failed_image(shed: Shed, base: bytes, tmp_path: Path) -> None:
    """After a refusal there is no half layer, no scratch, and the next try works."""
    oci.Layout(tmp_path / "l").image([base, oci.layer(E("../out", content=b"x"))])
    with pytest.raises(ImageFault, match="leads out"):
        await asyncio.to_thread(shed.images.containers.get, f"oci:{tmp_path / 'l'}")
    assert list((shed.images.layers.root / ".tmp").iterdir()) == []
    assert await shed.said(oci.layout(tmp_path / "m", base), "echo ok") == "ok\n"


async def test_marks_are_those_of_overlayfs(shed: Shed, base: bytes, tmp_path: Path) -> None:
    """On disk a deletion is a device 0:0, and a folder that hides others has the attribute."""
    upper = oci.layer(oci.directory("etc", 0o555), E("etc/.wh.group"), oci.directory("usr"), E("usr/.wh..wh..opq"))
    image = await asyncio.to_thread(shed.images.containers.get, oci.layout(tmp_path / "l", base, upper))
    layer = shed.images.layers.path(image.layers[0])
    info = (layer / "etc/group").lstat()
    assert stat.S_ISCHR(info.st_mode)
    assert info.st_rdev == 0
    assert stat.S_IMODE((layer / "etc").stat().st_mode) == 0o555
    assert os.getxattr(layer / "usr", "user.overlay.opaque") == b"y"
