"""Blobs: whole or absent, stored once, private, and checked when asked."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from woodshed.errors import StoreFault
from woodshed.store import Blobs


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("content", [b"", b"hello", os.urandom(3_000_001)], ids=["empty", "small", "large"])
def test_bytes_and_streams_give_the_same_blob(content: bytes, tmp_path: Path) -> None:
    """The name is the sha256 of the content; a stream of it is stored under the same name, once."""
    blobs = Blobs(tmp_path)
    name = blobs.put(content)
    assert name == hashlib.sha256(content).hexdigest()
    assert blobs.put(io.BytesIO(content)) == name
    with blobs.open(name, verify=True) as file:
        assert file.read() == content
    assert files(tmp_path) == [tmp_path / name[:2] / name[2:]]


def test_a_stream_is_read_to_its_end_in_pieces(tmp_path: Path) -> None:
    """A source that gives a few bytes at a time is stored whole."""

    class Drip(io.RawIOBase):
        left = 1000

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return b"abc" if self.left >= 0 else b""

    blobs = Blobs(tmp_path)
    with blobs.open(blobs.put(Drip())) as file:  # type: ignore[arg-type]  # a raw stream reads like a binary file
        assert file.read() == b"abc" * 1000


@pytest.mark.parametrize("ends", [b"", b"end"], ids=["zeros to the end", "more behind"])
def test_zeros_take_no_disk(ends: bytes, tmp_path: Path) -> None:
    """Content that is mostly nothing costs what is in it, and reads as it was."""
    content = b"start" + bytes(50_000_000) + ends
    blobs = Blobs(tmp_path)
    name = blobs.put(io.BytesIO(content))
    assert name == hashlib.sha256(content).hexdigest()
    with blobs.open(name) as file:
        assert file.read() == content
    assert blobs.path(name).stat().st_blocks * 512 < 5_000_000


def test_storing_again_writes_nothing(tmp_path: Path) -> None:
    """The second put of the same content leaves the first file as it is."""
    blobs = Blobs(tmp_path)
    path = blobs.path(blobs.put(b"once"))
    before = path.stat()
    blobs.put(b"once")
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_files_and_folders_are_their_owners_alone(tmp_path: Path) -> None:
    """Nothing below the folder can be read by group or others, whatever the umask."""
    previous = os.umask(0)
    try:
        blobs = Blobs(tmp_path / "blobs")
        blobs.put(b"secret")
    finally:
        os.umask(previous)
    for path in [tmp_path / "blobs", *(tmp_path / "blobs").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize(
    "name", ["", "abc", "../../etc/passwd", "A" * 64, "g" * 64, "0" * 63, "0" * 65, "0" * 64 + "\n", "/" + "0" * 63]
)
def test_a_name_that_is_no_digest_is_refused(name: str, tmp_path: Path) -> None:
    """Only 64 lower-case hex digits name a blob, so no name reaches outside the folder."""
    with pytest.raises(StoreFault, match="not a sha256"):
        Blobs(tmp_path).open(name)


def test_a_missing_blob_is_named(tmp_path: Path) -> None:
    """Opening what is not there says which and where."""
    with pytest.raises(StoreFault, match=r"blob 0{64} is missing"):
        Blobs(tmp_path).open("0" * 64)


def test_damage_is_found_when_asked(tmp_path: Path) -> None:
    """A changed byte is reported by verify, which hands out nothing."""
    blobs = Blobs(tmp_path)
    name = blobs.put(b"sound")
    blobs.path(name).write_bytes(b"sOund")
    with pytest.raises(StoreFault, match="damaged"):
        blobs.open(name, verify=True)


def test_a_file_cut_short_by_a_crash_is_written_again(tmp_path: Path) -> None:
    """A blob of the wrong size does not count as stored."""
    blobs = Blobs(tmp_path)
    name = blobs.put(b"whole content")
    blobs.path(name).write_bytes(b"whole")
    assert blobs.put(b"whole content") == name
    with blobs.open(name, verify=True) as file:
        assert file.read() == b"whole content"


def test_a_source_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """An error of the stream passes on, and no temporary file stays."""

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise RuntimeError("the source broke")

    blobs = Blobs(tmp_path)
    with pytest.raises(RuntimeError, match="the source broke"):
        blobs.put(Broken())
    assert files(tmp_path) == []


def test_what_a_killed_writer_left_is_swept_and_a_living_ones_is_not(tmp_path: Path) -> None:
    """Opening the folder removes the temporary file of a killed process; while it lives, its file stays."""
    code = (
        "import sys, os; from pathlib import Path; from woodshed.store import Blobs\n"
        "class Slow:\n"
        "    first = True\n"
        "    def read(self, size):\n"
        "        if not self.first: print('writing', flush=True); sys.stdin.read(1)\n"
        "        self.first = False\n"
        "        return b'half'\n"
        "Blobs(Path(sys.argv[1])).put(Slow())"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    Blobs(tmp_path)
    assert len(files(tmp_path)) == 1
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    Blobs(tmp_path)
    assert files(tmp_path) == []


def test_many_threads_may_store_the_same_content(tmp_path: Path) -> None:
    """All get the same name, and one whole file is there."""
    blobs, names = Blobs(tmp_path), []
    content = os.urandom(200_000)
    threads = [threading.Thread(target=lambda: names.append(blobs.put(io.BytesIO(content)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == [hashlib.sha256(content).hexdigest()] * 8
    assert len(files(tmp_path)) == 1


def test_a_folder_that_cannot_be_made_is_a_fault(tmp_path: Path) -> None:
    """A file in the folder's place is a StoreFault, not a stray error."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreFault, match="opening the blob folder"):
        Blobs(tmp_path / "file" / "blobs")
