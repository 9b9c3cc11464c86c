"""Hostile layers: whatever an archive holds, nothing outside its own layer changes, and nothing runs away.

Attacks have their control: the same archive does its harm where it is unpacked without care, so that a green test
means a defence and not a harmless archive.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import stat
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import ocikit as oci
from ocikit import E
from woodshed.errors import ImageFault, WoodshedError
from woodshed.sandbox.images import Images, inflate
from woodshed.sandbox.images.crossing import Crossing
from woodshed.sandbox.images.oci import Folder
from woodshed.sandbox.native.engine import NativeEngine


class Victim:
    """A home below which layers are unpacked, and around it what an archive must not reach."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.engine = NativeEngine(place / "home")
        self.images = Images(place / "home", None, Crossing(self.engine, asyncio.get_running_loop()))
        self.secret = place / "secret"
        self.secret.write_text("untouched")
        self._count = 0

    async def unpack(self, *tars: bytes, pack: str = "gzip") -> list[Path]:
        """The layers of an image of ``tars``, topmost first."""
        self._count += 1
        layout = oci.Layout(self.place / f"layout{self._count}")
        layout.image(tars, pack=pack)
        image = await asyncio.to_thread(self.images.containers.get, f"oci:{layout.folder}")
        return [self.images.layers.path(layer) for layer in image.layers]

    async def refused(self, *tars: bytes, why: str, pack: str = "gzip") -> None:
        before = set(self.images.layers.sizes())
        with pytest.raises(ImageFault, match=why):
            await self.unpack(*tars, pack=pack)
        assert set(self.images.layers.sizes()) - before <= self._skeleton()

    def _skeleton(self) -> set[str]:
        """The unpacking sandbox's own root, which is made once."""
        return {name for name in self.images.layers.sizes() if (self.images.layers.path(name) / "proc").is_dir()}

    def unharmed(self) -> None:
        assert self.secret.read_text() == "untouched"
        assert stat.S_IMODE(self.secret.stat().st_mode) == 0o644
        assert {path.name for path in self.place.iterdir() if not path.name.startswith("layout")} == {"home", "secret"}


@pytest.fixture
async def victim(tmp_path: Path) -> AsyncIterator[Victim]:
    made = Victim(tmp_path / "v")
    yield made
    made.images.close()
    await made.engine.close()
    made.unharmed()


@pytest.fixture(autouse=True)
def _place(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    os.umask(0o022)


def careless(tar: bytes, target: Path) -> None:
    """Unpack as tarfile does without a filter: what the attacks below would get away with."""
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        archive.extraction_filter = lambda member, path: member  # Pythons without filters leave it alone
        archive.extractall(target)


# -- names that lead out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../out", "a/../../../out", "./../out", "a/b/../../../../out"])
async def test_traversal(victim: Victim, tmp_path: Path, name: str) -> None:
    """A name with ``..`` is refused, wherever it would lead."""
    tar = oci.layer(oci.directory("a"), oci.directory("a/b"), E(name, content=b"harm"))
    careless(tar, tmp_path / "c/d/e")
    assert list((tmp_path / "c").rglob("out")) or (tmp_path / "out").exists(), "the control does no harm"
    await victim.refused(tar, why="leads out")


async def test_absolute_names(victim: Victim, tmp_path: Path) -> None:
    """An absolute name is one below the layer's top, as in every other puller."""
    tar = oci.layer(E(str(victim.secret), content=b"harm"))
    careless(oci.layer(E(str(tmp_path / "c"), content=b"harm")), tmp_path / "x")
    assert (tmp_path / "c").read_bytes() == b"harm"
    (layer,) = await victim.unpack(tar)
    assert (layer / str(victim.secret).lstrip("/")).read_bytes() == b"harm"


@pytest.mark.parametrize("to", ["/", "..", "../..", "{place}"])
async def test_through_a_link(victim: Victim, tmp_path: Path, to: str) -> None:
    """A name that passes a link of the archive is refused: the link leads nowhere."""
    target = to.format(place=victim.place)
    tar = oci.layer(E("way", "link", to=target), E("way/secret", content=b"harm"))
    (tmp_path / "c").mkdir()
    careless(oci.layer(E("way", "link", to=str(tmp_path / "c")), E("way/secret", content=b"harm")), tmp_path / "d")
    assert (tmp_path / "c/secret").read_bytes() == b"harm"
    await victim.refused(tar, why="stands in its way")


async def test_a_link_then_a_file_of_its_name(victim: Victim, tmp_path: Path) -> None:
    """A file of a link's name replaces the link; what it leads to is not written."""
    tar = oci.layer(E("f", "link", to=str(victim.secret)), E("f", content=b"harm"))
    (layer,) = await victim.unpack(tar)
    assert not (layer / "f").is_symlink()
    assert (layer / "f").read_bytes() == b"harm"


async def test_modes_and_owners_through_links(victim: Victim) -> None:
    """Modes, owners and times that an archive gives a link are the link's own."""
    (layer,) = await victim.unpack(oci.layer(E("l", "link", to=str(victim.secret), mode=0o4777, uid=1234)))
    assert (layer / "l").is_symlink()
    assert victim.secret.stat().st_uid == os.getuid()


@pytest.mark.parametrize("to", ["{secret}", "../secret", "../../../../../etc/passwd", "way/secret"])
async def test_hard_links_out(victim: Victim, tmp_path: Path, to: str) -> None:
    """A hard link joins two names of the archive, never a name and a file of the host's."""
    tar = oci.layer(E("way", "link", to=str(victim.place)), E("h", "hard", to=to.format(secret=victim.secret)))
    (tmp_path / "out").write_text("x")
    (tmp_path / "c").mkdir()
    os.link(tmp_path / "out", tmp_path / "c/h")  # as an unpacker that joins by path would
    assert (tmp_path / "out").stat().st_nlink == 2
    await victim.refused(tar, why="leads out|not there|stands in its way")
    assert victim.secret.stat().st_nlink == 1


async def test_a_hard_link_to_a_link(victim: Victim) -> None:
    """Writing to a name that is a hard link to a link replaces that name alone."""
    tar = oci.layer(E("l", "link", to=str(victim.secret)), E("h", "hard", to="l"), E("h", content=b"harm"))
    (layer,) = await victim.unpack(tar)
    assert (layer / "h").read_bytes() == b"harm"
    assert (layer / "l").is_symlink()


async def test_a_directory_in_a_links_place(victim: Victim) -> None:
    """A directory whose name is a link's stands in its place; its contents are the layer's."""
    tar = oci.layer(E("way", "link", to=str(victim.place)), oci.directory("way"), E("way/secret", content=b"inner"))
    (layer,) = await victim.unpack(tar)
    assert not (layer / "way").is_symlink()
    assert (layer / "way/secret").read_bytes() == b"inner"


async def test_links_of_a_lower_layer(victim: Victim) -> None:
    """Each layer is unpacked alone: a link of one below leads no file of one above anywhere."""
    upper, lower = await victim.unpack(oci.layer(E("way", "link", to=str(victim.place))),
                                       oci.layer(oci.directory("way"), E("way/secret", content=b"inner")))
    assert (upper / "way/secret").read_bytes() == b"inner"
    assert (lower / "way").is_symlink()


# -- what a file may be ------------------------------------------------------------------------------------------------


async def test_devices(victim: Victim, tmp_path: Path) -> None:
    """Devices are left out; the rest of the layer is there."""
    tar = oci.layer(E("disk", "block"), E("null", "char"), E("f", content=b"x"))
    if os.geteuid() == 0:
        careless(tar, tmp_path / "c")
        assert stat.S_ISBLK((tmp_path / "c/disk").lstat().st_mode)
    (layer,) = await victim.unpack(tar)
    assert [path.name for path in layer.iterdir()] == ["f"]


async def test_setuid(victim: Victim) -> None:
    """A setuid file lies where no other user of the host reaches it, and is none of the host's root in a sandbox."""
    (layer,) = await victim.unpack(oci.layer(E("s", content=b"#!/bin/sh\n", mode=0o4755)))
    assert stat.S_IMODE((layer / "s").stat().st_mode) == 0o4755
    assert stat.S_IMODE(victim.images.layers.root.stat().st_mode) == 0o700
    assert stat.S_IMODE((victim.place / "home/sandboxes").stat().st_mode) == 0o700


async def test_attributes(victim: Victim) -> None:
    """Of extended attributes those of users are kept; overlayfs' own and the system's are not an archive's to set."""
    (layer,) = await victim.unpack(oci.layer(E("f", content=b"x", pax={
        "SCHILY.xattr.user.note": "kept", "SCHILY.xattr.user.overlay.opaque": "y",
        "SCHILY.xattr.user.overlay.redirect": "/etc", "SCHILY.xattr.security.capability": "x",
        "SCHILY.xattr.trusted.overlay.opaque": "y"})))
    assert os.listxattr(layer / "f") == ["user.note"]


# -- deletions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), [
    (".wh.", "file"), (".wh..", "file"), (".wh...", "file"), ("a/.wh...", "file"), (".wh.x", "dir"),
    (".wh..wh..opq", "dir"), (".wh.x/y", "file"), ("a/.wh.b/c", "file"), (".wh..wh..opq/z", "file"),
])
async def test_deletions_of_nothing_or_of_what_is_above(victim: Victim, name: str, kind: str) -> None:
    """A mark that names the folder itself, the one above, or is a folder is refused."""
    await victim.refused(oci.layer(E(name, kind, mode=0o755)), why="deletion")


async def test_deletions_through_a_link(victim: Victim) -> None:
    """A mark below a link of the archive deletes nothing where the link leads."""
    for mark in (".wh.secret", ".wh..wh..opq"):
        await victim.refused(oci.layer(E("way", "link", to=str(victim.place)), E(f"way/{mark}")), why="in its way")


async def test_a_folder_becomes_a_link_after_its_deletions(victim: Victim) -> None:
    """Marks are set when all is unpacked, and a folder with marks cannot become a link until then."""
    await victim.refused(oci.layer(oci.directory("d"), E("d/.wh.secret"), E("d", "link", to=str(victim.place))),
                         why="in its way")


async def test_marks_as_links_and_with_contents(victim: Victim) -> None:
    """A mark is one whatever it is made of; nothing of it is kept but the deletion."""
    upper, _ = await victim.unpack(oci.layer(E("a", content=b"a"), E("b", content=b"b")),
                                   oci.layer(E(".wh.a", "link", to=str(victim.secret)), E(".wh.b", content=b"x" * 99)))
    assert sorted(path.name for path in upper.iterdir()) == ["a", "b"]
    for name in "ab":
        info = (upper / name).lstat()
        assert stat.S_ISCHR(info.st_mode)
        assert info.st_rdev == 0


# -- floods ------------------------------------------------------------------------------------------------------------


async def test_a_bomb_of_zeros(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    """What unpacks to many times its size is stopped on the way, long before it is whole."""
    monkeypatch.setattr(inflate, "FREE_BYTES", 4 << 20)
    tar = oci.layer(E("zeros", content=bytes(24 << 20)))
    assert len(gzip.compress(tar)) * 500 < len(tar), "the control is no bomb"
    await victim.refused(tar, why="bomb")


async def test_more_bytes_than_allowed(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer larger than the setting allows is stopped, whatever it says of its sizes."""
    monkeypatch.setenv("WOODSHED_IMAGE_MB", "2")
    await victim.refused(oci.layer(E("noise", content=os.urandom(3 << 20))), why="more than 2 MB|more bytes than")


async def test_a_size_that_is_a_lie(victim: Victim) -> None:
    """A header that tells of more than comes ends the layer early; none takes memory for what it tells."""
    tar = bytearray(oci.layer(E("f", content=b"x")))
    tar[124:136] = b"\x80" + (1 << 50).to_bytes(11, "big")
    tar[148:156] = b"%06o\0 " % (sum(tar[:148]) + 8 * 32 + sum(tar[156:512]))
    await victim.refused(bytes(tar), why="more bytes than are allowed|ends early")


async def test_names_a_thousand_folders_deep(victim: Victim) -> None:
    """A name of too many folders is refused, and one of many is none of our recursions' end."""
    await victim.refused(oci.layer(E("a/" * 1200 + "f", content=b"x")), why="directories deep")
    assert await victim.unpack(oci.layer(E("a/" * 399 + "f", content=b"x")))


@pytest.mark.parametrize(("name", "value"), [("user.a\0b", "v"), ("user.", "v"), ("user.big", "v" * 100_000)],
                         ids=["nul", "empty", "large"])
async def test_attributes_no_file_can_have(victim: Victim, name: str, value: str) -> None:
    """An attribute that the file system takes not is left out, and ends no unpacking."""
    assert await victim.unpack(oci.layer(E("f", content=b"x", pax={f"SCHILY.xattr.{name}": value})))


async def test_a_header_of_tiny_records(victim: Victim) -> None:
    """A pax header of ten thousands of records is read in one pass."""
    assert await victim.unpack(oci.layer(E("f", content=b"x", pax={f"a{number}": "" for number in range(20_000)})))


def test_an_unpacked_archive_names_nothing_outside(tmp_path: Path) -> None:
    """In a folder of ``docker save`` the manifest's words name files of it alone, through no link."""
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "inner").write_text("{}")
    (folder / "link").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    for name in ("../secret.json", str(secret), "link", "up/secret.json", "./../secret.json", "pipe", "", "a\0b"):
        assert Folder(folder).open(name) is None
    inner = Folder(folder).open("inner")  # the control
    assert inner is not None
    inner.close()


async def test_configurations_that_cannot_be_written(victim: Victim, tmp_path: Path) -> None:
    """Halves of characters in a variable or folder are the image's fault, told before anything is unpacked."""
    for inner in ({"Env": ["A=\ud800"]}, {"WorkingDir": "/\udfff"}, {"User": "\ud800"}):
        image = oci.layout(tmp_path / f"l{len(list(tmp_path.iterdir()))}", oci.layer(E("f")), inner=inner)
        with pytest.raises(ImageFault, match="characters that are none"):
            await asyncio.to_thread(victim.images.containers.get, image)


async def test_headers_that_are_too_large(victim: Victim) -> None:
    """A name of megabytes is refused by its header, before it is read."""
    huge = bytearray(oci.layer(E("f", pax={"comment": "x" * 100})))
    at = 0  # the first header is pax's own
    huge[at + 124:at + 136] = b"%011o\0" % (1 << 30)
    huge[at + 148:at + 156] = b"%06o\0 " % (sum(huge[at:at + 148]) + 8 * 32 + sum(huge[at + 156:at + 512]))
    await victim.refused(bytes(huge), why="a header of")


@pytest.mark.parametrize("name", ["n" * 300, "/".join(["d" * 200] * 30), "a/" * 2500 + "f"])
async def test_names_that_are_too_long(victim: Victim, name: str) -> None:
    """A name no file system takes is refused."""
    await victim.refused(oci.layer(E(name, content=b"x")), why="no path|in its way")


async def test_many_entries(victim: Victim) -> None:
    """A thousand entries of one name are one file, the last."""
    (layer,) = await victim.unpack(oci.layer(*(E("same", content=b"%d" % number) for number in range(1000))))
    assert (layer / "same").read_bytes() == b"999"


async def test_sparse_members(victim: Victim) -> None:
    """Sparse members, by GNU's kind or pax' keys, are refused: their maps make terabytes of nothing."""
    tar = bytearray(oci.layer(E("f", content=b"x")))
    tar[156:157] = b"S"
    tar[148:156] = b"%06o\0 " % (sum(tar[:148]) + 8 * 32 + sum(tar[156:512]))
    await victim.refused(bytes(tar), why="kind no layer has")
    pax = {"GNU.sparse.major": "1", "GNU.sparse.realsize": "9" * 15}
    await victim.refused(oci.layer(E("f", content=b"x", pax=pax)), why="sparse")


async def test_numbers_that_are_none(victim: Victim) -> None:
    """Negative and overflowing sizes, owners and times are refused or bounded, and crash nothing."""
    for field, data in ((slice(124, 136), b"\xff" * 12), (slice(124, 136), b"-1".ljust(12, b"\0")),
                        (slice(108, 116), b"\xff" * 8), (slice(124, 136), b"9" * 12)):
        tar = bytearray(oci.layer(E("f", content=b"x")))
        tar[field] = data
        tar[148:156] = b"%06o\0 " % (sum(tar[:148]) + 8 * 32 + sum(tar[156:512]))
        await victim.refused(bytes(tar), why="number")
    for key in ("size", "uid", "gid"):
        await victim.refused(oci.layer(E("f", pax={key: "-1" if key == "size" else "x"})), why="size|none|damaged")
    (layer,) = await victim.unpack(oci.layer(E("f", pax={"mtime": "9" * 40})))
    assert (layer / "f").exists()


async def test_the_sandbox_that_unpacks_holds_no_program(victim: Victim) -> None:
    """Nothing of an image is run to unpack it: not even where the layer replaces what the sandbox itself mounts."""
    for name in ("proc/self/exe", "dev/null", "proc/1/mem"):
        (layer,) = await victim.unpack(oci.layer(E(name, content=b"mine")))
        assert (layer / name).read_bytes() == b"mine"


async def test_nothing_stays_after_all_that(victim: Victim) -> None:
    """A refused layer leaves neither scratch nor sandbox."""
    await victim.refused(oci.layer(E("../x", content=b"x")), why="leads out")
    assert list((victim.images.layers.root / ".tmp").iterdir()) == []
    assert [path.name for path in (victim.place / "home/sandboxes").glob("*/[0-9]*")] == []


# -- archives that ADD unpacks, and contexts that lead out -------------------------------------------------------------


async def _build(victim: Victim, dockerfile: str, **files: bytes | str) -> list[Path]:
    context = victim.place / f"layout-context{len(list(victim.place.iterdir()))}"
    context.mkdir()
    for name, content in files.items():
        path = context / name.replace("__", ".")
        path.symlink_to(content) if isinstance(content, str) else path.write_bytes(content)
    (context / "Dockerfile").write_text(dockerfile)
    image = await asyncio.to_thread(victim.images.containers.get, f"dockerfile:{context}")
    return [victim.images.layers.path(layer) for layer in image.layers]


@pytest.mark.parametrize("entries", [
    (E("../../out", content=b"x"),), (E("way", "link", to="/"), E("way/out", content=b"x")),
    (E("h", "hard", to="../../../secret"),),
])
async def test_add_of_a_hostile_archive(victim: Victim, entries: tuple[E, ...]) -> None:
    """ADD unpacks inside a sandbox, by the same rules."""
    with pytest.raises(WoodshedError, match="line 2"):
        await _build(victim, "FROM scratch\nADD a__tar /\n".replace("__", "."), a__tar=oci.layer(*entries))


@pytest.mark.parametrize("text", ["COPY ../secret /", "COPY way /x", "COPY way/secret /x", "ADD ../*/secret /x"])
async def test_contexts_do_not_lead_out(victim: Victim, text: str) -> None:
    """Neither ``..`` nor a link of the context makes a file of the host part of an image."""
    with pytest.raises(WoodshedError, match=r"out of the context|not in the context"):
        await _build(victim, f"FROM scratch\n{text}\n", way=str(victim.place))


@pytest.mark.parametrize("base", ["dir:/", "oci:{place}", "dockerfile:/etc", "id:" + "a" * 64, "build:" + "a" * 64])
async def test_a_dockerfile_names_no_place_of_the_host(victim: Victim, base: str) -> None:
    """FROM means images by name: no folder, archive or id of this machine."""
    with pytest.raises(WoodshedError, match="line 1"):
        await _build(victim, f"FROM {base.format(place=victim.place)}\n")
