"""Trees survive every way they can take: frames, tar streams, and both through a live sandbox; garbage goes nowhere."""

# ruff: noqa: PTH101, PTH102, PTH103, PTH112, PTH115, PTH118, PTH120, PTH123, PTH208, PTH211
# (Names are any bytes here, which pathlib does not take.)

from __future__ import annotations

import asyncio
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from woodshed.errors import UsageError
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.native import landing, trees, upload
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.inside import frames, tarring
from woodshed.sandbox.native.inside.beneath import Beneath

# Any bytes but "/" and NUL make a name; the odd ones are tried more often.
NAMES = st.one_of(
    st.sampled_from([b"a", b"b", b"new\nline", b"\xff\xfe", b"-rf", b"...", b" ", b"a" * 255, "ü".encode()]),
    st.binary(min_size=1, max_size=12),
).map(lambda name: name.replace(b"/", b"_").replace(b"\0", b"_")).filter(lambda name: name not in (b".", b".."))
MODES = st.sampled_from([0o000, 0o400, 0o644, 0o700, 0o755, 0o777, 0o1777, 0o4755, 0o2755])


@dataclass(frozen=True)
class Node:
    """What is put at a path: contents (``data`` so many ``times``) between holes, a link's target, or a directory."""

    path: tuple[bytes, ...]
    kind: str
    mode: int
    data: bytes
    times: int
    hole: int


NODES = st.builds(
    Node, st.lists(NAMES, min_size=1, max_size=4).map(tuple), st.sampled_from(["file", "file", "directory", "link"]),
    MODES, st.binary(max_size=40), st.sampled_from([1, 1, 2000, 20_000]), st.sampled_from([0, 0, 1, 70_000, 3_000_000]),
)
LEVEL = "a-name-of-19-letters"[:19]
TREES = st.lists(NODES, max_size=10)


def plant(top: Path, nodes: list[Node]) -> None:
    """Make ``nodes`` below ``top``, where they fit; modes last."""
    root = os.fsencode(top)
    os.mkdir(root)
    modes = [(root, 0o755)]
    for node in nodes:
        path = b"/".join((root, *node.path))
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if node.kind == "directory":
                os.mkdir(path)
            elif node.kind == "link":
                os.symlink(node.data.replace(b"\0", b"_")[:1000] or b"x", path)
                continue
            else:
                with open(path, "xb") as file:
                    file.truncate(node.hole)
                    file.seek(node.hole)
                    file.write(node.data * node.times)
                    file.truncate(node.hole * 2 + len(node.data) * node.times)
        except OSError:
            continue
        modes.append((path, node.mode))
    for path, mode in reversed(modes):
        # Who is no root must be able to read it again.
        os.chmod(path, mode if os.geteuid() == 0 else mode | (0o700 if os.path.isdir(path) else 0o400))


def seen(top: Path) -> dict[bytes, tuple[object, ...]]:
    """Kind, permission bits and content of everything at and below ``top``."""
    found: dict[bytes, tuple[object, ...]] = {}
    todo = [b""]
    while todo:
        path = todo.pop()
        full = os.path.join(os.fsencode(top), path) if path else os.fsencode(top)
        info = os.lstat(full)
        if stat.S_ISLNK(info.st_mode):
            found[path] = ("link", os.readlink(full))
        elif stat.S_ISREG(info.st_mode):
            with open(full, "rb") as file:
                found[path] = ("file", stat.S_IMODE(info.st_mode) & 0o777, file.read())
        else:
            found[path] = ("directory", stat.S_IMODE(info.st_mode) & 0o777)
            todo.extend(os.path.join(path, name) if path else name for name in os.listdir(full))
    return found


@pytest.fixture
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="woodshed-laws-"))
    yield folder
    trees.remove(folder)


ONCE = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def fresh(place: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=place))


def blocks(top: Path) -> int:
    """Of 512 bytes, used by the files below ``top``."""
    return sum(path.lstat().st_blocks for path in top.rglob("*") if stat.S_ISREG(path.lstat().st_mode))


@given(nodes=TREES)
@ONCE
def test_frames_carry_any_tree(place: Path, nodes: list[Node]) -> None:
    """A tree sent as frames and landed is the same tree, but for set-id and sticky bits; its holes stay holes."""
    folder = fresh(place)
    plant(folder / "a", nodes)
    contents = upload.pack(folder / "a")
    try:
        landing.land(frames.Frames(frames.Reader(lambda size: os.read(contents, size))), folder / "b", 1 << 30)
    finally:
        os.close(contents)
    assert seen(folder / "b") == seen(folder / "a")
    assert blocks(folder / "b") <= blocks(folder / "a") + 256 * len(nodes)


@given(nodes=TREES)
@ONCE
def test_tar_streams_carry_any_tree(place: Path, nodes: list[Node]) -> None:
    """What we pack is read back by ourselves and by tarfile with the same names, contents, links and modes."""
    folder = fresh(place)
    plant(folder / "a", nodes)
    packed = io.BytesIO()
    entries = frames.walk(str(folder / "a"), lambda path, why: None)
    tarring.write(entries, "b", into(packed))
    packed.seek(0)
    unpack(packed.getvalue(), folder)
    assert seen(folder / "b") == seen(folder / "a")
    with tarfile.open(fileobj=packed, errors="surrogateescape", encoding="utf-8") as archive:
        told = {os.fsencode(member.name): member for member in archive}
    expected = {b"b" + (b"/" + path if path else b""): what for path, what in seen(folder / "a").items()}
    assert set(told) == set(expected)
    for name, what in expected.items():
        kind = "link" if told[name].issym() else "directory" if told[name].isdir() else "file"
        assert kind == what[0]
        assert told[name].size == (len(what[2]) if kind == "file" else 0)  # type: ignore[arg-type]  # bytes of a file
        if kind == "link":
            assert os.fsencode(told[name].linkname) == what[1]


def into(sink: io.BytesIO) -> frames.Write:
    def write(data: bytes) -> None:
        sink.write(data)

    return write


def unpack(packed: bytes, folder: Path) -> None:
    """Unpack into the directory ``folder`` as a box does. Raises tarring.Refused, OSError."""
    tree = Beneath(os.open(folder.parent, os.O_PATH | os.O_DIRECTORY), folder.name, replace=True)
    try:
        tree.enter()
        tarring.read(frames.Reader(io.BytesIO(packed).read), tree)
        tree.finish()
    finally:
        tree.close()


@given(nodes=TREES, kind=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
@ONCE
def test_archives_of_others_are_understood(place: Path, nodes: list[Node], kind: int) -> None:
    """Archives that tarfile makes, in each of its formats, are unpacked to the tree they were made of."""
    folder = fresh(place)
    plant(folder / "a", nodes)
    packed = io.BytesIO()
    try:
        with tarfile.open(fileobj=packed, mode="w", format=kind, encoding="utf-8", errors="surrogateescape") as archive:
            archive.add(folder / "a", "b")
    except (ValueError, UnicodeError):
        return  # ustar has no such long names, pax none that are not UTF-8
    unpack(packed.getvalue(), folder)
    assert seen(folder / "b") == seen(folder / "a")


@given(data=st.one_of(st.binary(max_size=3000), st.binary(max_size=400).map(lambda data: data.ljust(1024, b"\0"))),
       at=st.integers(0, 4000), nodes=TREES)
@ONCE
def test_garbage_goes_nowhere(place: Path, data: bytes, at: int, nodes: list[Node]) -> None:
    """Frames and archives with bytes changed at any place are unpacked or refused, and nothing lands outside."""
    folder = fresh(place)
    plant(folder / "a", nodes)
    framed, packed = io.BytesIO(), io.BytesIO()
    contents = upload.pack(folder / "a")
    framed.write(os.pread(contents, 1 << 20, 0))
    os.close(contents)
    tarring.write(frames.walk(str(folder / "a"), lambda path, why: None), "b", into(packed))
    for stream in (framed, packed):
        whole = stream.getvalue()[:200_000]
        at = at % (len(whole) + 1)
        hurt = whole[:at] + data + whole[at + len(data):]
        target = fresh(folder)
        before = sorted(os.listdir(folder))
        if stream is framed:
            try:
                landing.land(frames.Frames(frames.Reader(io.BytesIO(hurt).read)), target / "x", 1 << 24)
            except OSError:
                assert os.listdir(target) == []
        else:
            with suppress(tarring.Refused, OSError):
                unpack(hurt, target)
        assert sorted(os.listdir(folder)) == before


@pytest.fixture(scope="module")
def world(shed_home: Path) -> Iterator[tuple[asyncio.Runner, NativeSandbox]]:
    """One box for the module, in a loop of its own."""
    with asyncio.Runner() as runner:
        async def opened() -> tuple[NativeEngine, NativeSandbox]:
            engine = NativeEngine(shed_home)
            return engine, await engine.create(EnvironmentSpec(), SandboxPolicy())

        engine, box = runner.run(opened())
        yield runner, box
        runner.run(engine.close())


@given(nodes=TREES)
@settings(ONCE, max_examples=25)
def test_a_sandbox_gives_back_what_it_was_given(
    world: tuple[asyncio.Runner, NativeSandbox], place: Path, nodes: list[Node]
) -> None:
    """Up and down, as a tree and as an archive: what comes out is what went in."""
    runner, box = world
    folder = fresh(place)
    plant(folder / "a", nodes)

    async def trip() -> None:
        await box.upload(folder / "a", "one")
        await box.download("one", folder / "b")
        packed = io.BytesIO()
        await box.download_tar("one", packed)
        packed.seek(0)
        await box.upload_tar(packed, "two")
        await box.download("two/one", folder / "c")
        await box.exec("chmod -R u+rwx one two; rm -rf one two")

    runner.run(trip())
    assert seen(folder / "b") == seen(folder / "a")
    assert seen(folder / "c") == seen(folder / "a")


def test_a_tree_as_deep_as_paths_go_survives(world: tuple[asyncio.Runner, NativeSandbox], place: Path) -> None:
    """A path of almost four thousand bytes goes in and out; a longer one is an error in both directions."""
    runner, box = world
    deep = place / "deep"
    deep.mkdir()
    deeper(deep, 0, 199)
    runner.run(box.upload(deep, "/d"))
    runner.run(box.download("/d", place / "back"))
    assert len(seen(place / "back")) == 200
    below = "/d" + f"/{LEVEL}" * 199
    runner.run(box.exec(["mkdir", "-p", f"{LEVEL}/" * 2], cwd=below))
    with pytest.raises(OSError, match="too long"):
        runner.run(box.download("/d", place / "more"))
    assert not (place / "more").exists()
    runner.run(box.exec("rm -rf /d"))
    deeper(deep, 199, 2)
    with pytest.raises(UsageError, match="too long"):
        runner.run(box.upload(deep, "/e"))


def deeper(top: Path, after: int, levels: int) -> None:
    """Directories one in the other, below ``after`` ones."""
    fd = os.open(os.path.join(top, *[LEVEL] * after), os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(LEVEL, dir_fd=fd)
        below = os.open(LEVEL, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
