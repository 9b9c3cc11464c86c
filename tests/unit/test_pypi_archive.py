"""Archives are hostile input: what comes out of one stays below its folder and within its limits."""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.errors import UsageError
from woodshed.pypi import extract, open_archive

Make = Callable[[tarfile.TarFile], None]


def tar(path: Path, make: Make) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        make(archive)
    return path


def add(archive: tarfile.TarFile, name: str, body: bytes = b"", mode: int = 0o644, **more: object) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(body), mode
    for key, value in more.items():
        setattr(member, key, value)
    archive.addfile(member, io.BytesIO(body))


def good(archive: tarfile.TarFile) -> None:
    add(archive, "top", type=tarfile.DIRTYPE, mode=0o700)
    add(archive, "top/run", b"#!", mode=0o6755)
    add(archive, "./top/deep/file", b"text", mode=0o600)
    add(archive, "top/deep/up", type=tarfile.SYMTYPE, linkname="../run")
    add(archive, "top/hard", type=tarfile.LNKTYPE, linkname="top/deep/file")


def test_files_links_and_modes_come_out(tmp_path: Path) -> None:
    """Files get 0644 or 0755 without setuid, links inside stay, hard links become copies; ``strip`` drops parts."""
    extract(tar(tmp_path / "a.tar.gz", good), tmp_path / "out", strip=1)
    out = tmp_path / "out"
    assert {str(path.relative_to(out)) for path in out.rglob("*")} == {"run", "deep", "deep/file", "deep/up", "hard"}
    assert stat.S_IMODE((out / "run").stat().st_mode) == 0o755
    assert stat.S_IMODE((out / "deep/file").stat().st_mode) == 0o644
    assert (out / "deep/up").resolve() == (out / "run").resolve()
    assert (out / "hard").read_bytes() == b"text"
    assert (out / "hard").stat().st_nlink == 1
    assert not list(tmp_path.glob(".extract-*"))


def link(name: str, to: str) -> Make:
    return lambda archive: add(archive, name, type=tarfile.SYMTYPE, linkname=to)


def hard(name: str, to: str) -> Make:
    return lambda archive: add(archive, name, type=tarfile.LNKTYPE, linkname=to)


def file(name: str) -> Make:
    return lambda archive: add(archive, name, b"owned")


def both(*makes: Make) -> Make:
    def make(archive: tarfile.TarFile) -> None:
        for one in makes:
            one(archive)

    return make


def node(kind: bytes) -> Make:
    return lambda archive: add(archive, "node", type=kind, devmajor=1, devminor=3)


@pytest.mark.parametrize("make", [
    file("../owned"), file("/owned"), file("a/../../owned"), file("a/.."),
    file("x" * 5000), file("x" * 300), file("x/" * 1500 + "y"),
    link("l", "/etc/passwd"), link("l", "../owned"), link("a/l", "../../owned"), link("l", ""),
    both(link("a/up", ".."), link("out", "a/up/../owned")), both(link("d", "."), link("l", "d/../../owned")),
    both(link("a/l", ".."), file("a/l/owned")), both(link("l", "a"), file("l/b")),
    hard("h", "/etc/passwd"), hard("h", "../owned"), hard("h", "absent"), both(link("l", "a"), hard("h", "l")),
    node(tarfile.CHRTYPE), node(tarfile.BLKTYPE), node(tarfile.FIFOTYPE), both(file("a"), file("a/b")),
    both(file("a/b"), file("a")),
])
def test_what_could_leave_the_folder_is_refused_whole(tmp_path: Path, make: Make) -> None:
    """Traversal, links out (chains too), writing through links, devices, FIFOs: refused, and nothing is left."""
    archive = tar(tmp_path / "bad.tar.gz", both(file("innocent"), make))
    with pytest.raises(UsageError, match=r"bad\.tar\.gz"):
        extract(archive, tmp_path / "in" / "out")
    assert list((tmp_path / "in").iterdir()) == []
    assert not (tmp_path / "owned").exists()


def test_the_same_archive_escapes_from_a_naive_extraction(tmp_path: Path) -> None:
    """Control: tarfile without a filter writes outside, so the tests above test something."""
    archive = tar(tmp_path / "bad.tar.gz", file("../owned"))
    (tmp_path / "in").mkdir()
    with tarfile.open(archive) as opened:
        # Without a filter is how it was before 3.11.4, and how it is asked for since.
        trusted = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
        opened.extractall(tmp_path / "in", **trusted)  # type: ignore[arg-type]  # a keyword 3.11.2 does not have
    assert (tmp_path / "owned").read_bytes() == b"owned"


def zipped(path: Path, *members: tuple[str, bytes, int]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body, mode in members:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, body)
    return path


def test_zips_and_wheels_come_out_too(tmp_path: Path) -> None:
    """A wheel is a zip: files, folders, the execute bit, links inside."""
    archive = zipped(tmp_path / "a.whl", ("d/", b"", stat.S_IFDIR | 0o755), ("d/x", b"1", stat.S_IFREG | 0o755),
                     ("plain", b"2", 0), ("l", b"d/x", stat.S_IFLNK | 0o777))
    extract(archive, tmp_path / "out")
    assert (tmp_path / "out/l").resolve().read_bytes() == b"1"
    assert os.access(tmp_path / "out/d/x", os.X_OK)
    assert (tmp_path / "out/plain").read_bytes() == b"2"


@pytest.mark.parametrize("member", [
    ("../owned", b"", 0), ("/owned", b"", 0), ("a/../../owned", b"", 0), ("l", b"../owned", stat.S_IFLNK | 0o777),
    ("l", b"/etc/passwd", stat.S_IFLNK | 0o777), ("f", b"", stat.S_IFIFO | 0o644), ("c", b"", stat.S_IFCHR | 0o644),
])
def test_hostile_zips_are_refused(tmp_path: Path, member: tuple[str, bytes, int]) -> None:
    """The rules are the same for zips."""
    with pytest.raises(UsageError, match=r"bad\.zip"):
        extract(zipped(tmp_path / "bad.zip", member), tmp_path / "in" / "out")
    assert list((tmp_path / "in").iterdir()) == []


def test_bombs_are_refused_by_what_they_would_unpack_to(tmp_path: Path) -> None:
    """Too many bytes or members end the extraction before the disk is full, in tars and zips, read or skipped."""
    big = zipped(tmp_path / "big.zip", ("zeros", bytes(5_000_000), 0))
    assert big.stat().st_size < 50_000
    large = tar(tmp_path / "big.tar.gz", lambda archive: add(archive, "zeros", bytes(5_000_000)))
    for archive in (big, large):
        with pytest.raises(UsageError, match="more bytes"):
            extract(archive, tmp_path / "out", max_bytes=4_000_000)
        with pytest.raises(UsageError, match="more bytes"), open_archive(archive, max_bytes=4_000_000) as opened:
            list(opened)
    many = tar(tmp_path / "many.tar.gz", both(*(file(str(number)) for number in range(20))))
    with pytest.raises(UsageError, match="more members"):
        extract(many, tmp_path / "out", max_members=19)
    extract(many, tmp_path / "out", max_members=20)


def test_a_zip_that_lies_about_its_size_gives_no_more_than_it_says(tmp_path: Path) -> None:
    """A small size in the headers of a large member is damage, not a way around the limit."""
    path = zipped(tmp_path / "liar.zip", ("zeros", bytes(100_000), 0))
    true, false = (100_000).to_bytes(4, "little"), (10).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(true, false))
    with pytest.raises(UsageError, match="damaged"):
        extract(path, tmp_path / "out", max_bytes=1000)


def test_an_extended_header_that_would_fill_memory_is_refused(tmp_path: Path) -> None:
    """tarfile reads such a header in one piece of the stated size."""
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 34
    path = tmp_path / "pax.tar.gz"
    path.write_bytes(gzip.compress(header.tobuf() + bytes(4096)))
    with pytest.raises(UsageError, match=r"too large|no archive"):
        extract(path, tmp_path / "out")


def test_compressions_that_inflate_a_whole_read_at_once_are_refused(tmp_path: Path) -> None:
    """No wheel uses bzip2 or LZMA inside."""
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a", b"1")
    with pytest.raises(UsageError, match="compression"):
        extract(tmp_path / "b.zip", tmp_path / "out")


@pytest.mark.parametrize(
    "body", [b"", b"no archive", b"PK\3\4 broken", gzip.compress(b"no tar in here" * 100, mtime=0)],
    ids=["empty", "text", "broken zip", "no tar"],
)
def test_what_is_no_archive_is_named(tmp_path: Path, body: bytes) -> None:
    """A file that is no archive is a usage error with its path, as is one that is not there."""
    path = tmp_path / "x.tar.gz"
    path.write_bytes(body)
    for archive in (path, tmp_path / "absent.zip"):
        with pytest.raises(UsageError) as caught:
            extract(archive, tmp_path / "out")
        assert caught.value.file == archive


def test_a_truncated_archive_is_damaged(tmp_path: Path) -> None:
    """Half an archive gives an error, and no half of a tree."""
    path = tar(tmp_path / "half.tar.gz", lambda archive: add(archive, "a", os.urandom(100_000)))
    path.write_bytes(path.read_bytes()[:50_000])
    with pytest.raises(UsageError):
        extract(path, tmp_path / "in" / "out")
    assert list((tmp_path / "in").iterdir()) == []


def test_a_folder_with_something_in_it_is_never_extracted_into(tmp_path: Path) -> None:
    """An existing folder must be empty, and no link."""
    archive = tar(tmp_path / "a.tar.gz", good)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    for name in ("full", "link"):
        with pytest.raises(UsageError, match="empty folder"):
            extract(archive, tmp_path / name)
    extract(archive, tmp_path / "empty")
    assert (tmp_path / "empty/top/run").exists()


def test_members_can_be_read_one_by_one(tmp_path: Path) -> None:
    """Iteration gives each member with its content, without touching the disk."""
    with open_archive(tar(tmp_path / "a.tar.gz", good)) as archive:
        found = {member.path: (member.kind, content.read()) for member, content in archive}
    assert found == {
        "top": ("directory", b""), "top/run": ("file", b"#!"), "top/deep/file": ("file", b"text"),
        "top/deep/up": ("symlink", b""), "top/hard": ("hardlink", b""),
    }


NAMES = st.lists(st.sampled_from(["a", "b", "c", "..", ".", ""]), min_size=1, max_size=4).map("/".join)
STEPS = st.one_of(st.tuples(st.just("file"), NAMES, NAMES), st.tuples(st.just("link"), NAMES, NAMES),
                  st.tuples(st.just("hard"), NAMES, NAMES), st.tuples(st.just("dir"), NAMES, NAMES))


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=7))
def test_no_archive_reaches_outside_whatever_it_holds(steps: list[tuple[str, str, str]]) -> None:
    """However names and links are combined, nothing is written outside and every link that comes out leads inside."""
    kinds = {"file": tarfile.REGTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "dir": tarfile.DIRTYPE}

    def make(archive: tarfile.TarFile) -> None:
        for kind, name, to in steps:
            add(archive, name, b"x" if kind == "file" else b"", type=kinds[kind], linkname=to)

    with tempfile.TemporaryDirectory() as folder:
        base, out = Path(folder), Path(folder, "in/out")
        archive = tar(base / "a.tar.gz", make)
        try:
            extract(archive, out)
        except UsageError:
            assert not out.exists()
        for path in out.rglob("*") if out.exists() else ():
            try:
                path.stat()
            except OSError as error:
                if error.errno == errno.ELOOP:
                    continue  # a circle leads to no place at all, and realpath() answers it with a made-up one
            assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(out))
        assert {path.name for path in base.iterdir()} <= {"a.tar.gz", "in"}
        assert {path.name for path in (base / "in").iterdir()} <= {"out"}


def test_a_zip_of_a_version_that_nobody_reads_is_a_usage_error(tmp_path: Path) -> None:
    """The version needed, which zipfile answers with NotImplementedError, is damage like any other."""
    path = zipped(tmp_path / "a.zip", ("a", b"text", 0))
    body = bytearray(path.read_bytes())
    body[body.index(b"PK\x01\x02") + 6] = 132
    path.write_bytes(body)
    with pytest.raises(UsageError, match=r"a\.zip: is no archive that can be read"):
        extract(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damage_is_a_usage_error_and_nothing_else(data: st.DataObject) -> None:
    """Any bytes changed in an archive give a tree or a UsageError, never another exception."""
    with tempfile.TemporaryDirectory() as folder:
        path = tar(Path(folder, "a.tar.gz"), good)
        if data.draw(st.booleans()):
            path = zipped(Path(folder, "a.zip"), ("a", b"text" * 10, 0), ("b/c", b"more", 0o755))
            body = bytearray(path.read_bytes())
        else:
            body = bytearray(zlib.decompress(path.read_bytes(), 31))
        for _ in range(data.draw(st.integers(1, 4))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(body)
        try:
            extract(path, Path(folder, "out"))
        except UsageError:
            assert not Path(folder, "out").exists()
