"""Files are fetched from the configured index whole, verified and never run."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from woodshed.errors import EnvironmentFault, UsageError
from woodshed.pypi import fetch


@dataclass
class Index:
    """A small index server. ``pages`` are HTML or JSON by path; ``files`` are bodies; the rest makes trouble."""

    port: int = 0
    pages: dict[str, tuple[str, str]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    login: str = ""
    broken_after: int = 0
    seen: list[tuple[str, str | None, str | None]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def html(self, name: str, *anchors: str) -> None:
        self.pages[f"/simple/{name}/"] = ("text/html", "<!DOCTYPE html>" + "\n".join(anchors))

    def publish(self, name: str, filename: str, body: bytes, **more: object) -> None:
        """Offer a file by JSON."""
        self.files[f"/files/{filename}"] = body
        path = f"/simple/{name}/"
        page = json.loads(self.pages.get(path, ("", '{"files": []}'))[1])
        page["files"].append({"filename": filename, "url": f"../../files/{filename}",
                              "hashes": {"sha256": hashlib.sha256(body).hexdigest()}, **more})
        self.pages[path] = ("application/vnd.pypi.simple.v1+json", json.dumps(page))


class Handler(http.server.BaseHTTPRequestHandler):
    index: Index

    def do_GET(self) -> None:
        index = self.index
        index.seen.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        expected = "Basic " + base64.b64encode(index.login.encode()).decode()
        if index.login and self.headers.get("Authorization") != expected:
            self.send_error(401)
        elif statuses := index.statuses.get(self.path):
            self.send_error(statuses.pop(0))
        elif to := index.redirects.get(self.path):
            self.answer(302, b"", {"Location": to})
        elif page := index.pages.get(self.path):
            self.answer(200, page[1].encode(), {"Content-Type": page[0]})
        elif (body := index.files.get(self.path)) is not None:
            self.file(body)
        else:
            self.send_error(404)

    def file(self, body: bytes) -> None:
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        if start and start >= len(body):
            self.send_error(416)
            return
        part, limit = body[start:], self.index.broken_after
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part[:limit] if limit else part)

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def serve(index: Index) -> Iterator[Index]:
    handler = type("Bound", (Handler,), {"index": index})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        index.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield index
        server.shutdown()
        thread.join()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index that pip's configuration names, and no other."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    for made in serve(Index()):
        monkeypatch.setenv("PIP_INDEX_URL", f"{made.url}/simple")
        yield made


@pytest.fixture
def elsewhere() -> Iterator[Index]:
    """A second server."""
    yield from serve(Index())


WHEEL = "shed_one-{}-py3-none-any.whl"
SDIST = "shed_one-{}.tar.gz"


def test_the_newest_file_of_the_kind_is_fetched(index: Index, tmp_path: Path) -> None:
    """A wheel is preferred, a kind can be asked for, a version pinned; progress ends at the size."""
    for version in ("1.0", "1.10", "1.9", "2.0rc1"):
        index.publish("shed-one", WHEEL.format(version), f"wheel {version}".encode())
    index.publish("shed-one", SDIST.format("1.10"), b"source")
    told: list[tuple[int, int | None]] = []
    path = fetch("Shed.One", tmp_path, progress=lambda done, total: told.append((done, total)))
    assert path == tmp_path / WHEEL.format("1.10")
    assert path.read_bytes() == b"wheel 1.10"
    assert told[-1] == (10, 10)
    assert fetch("shed_one", tmp_path, kind="sdist").name == SDIST.format("1.10")
    assert fetch("shed-one<1.10", tmp_path).name == WHEEL.format("1.9")
    assert fetch("shed-one==2.0rc1", tmp_path).name == WHEEL.format("2.0rc1")
    assert {item.name for item in tmp_path.iterdir()} == {
        WHEEL.format("1.10"), WHEEL.format("1.9"), WHEEL.format("2.0rc1"), SDIST.format("1.10")}


def test_what_does_not_fit_is_passed_over(index: Index, tmp_path: Path) -> None:
    """Another platform's wheels, other Pythons and yanked releases are left out; a yanked one may be pinned."""
    index.publish("shed-one", "shed_one-3.0-cp27-cp27m-win32.whl", b"3")
    index.publish("shed-one", WHEEL.format("2.2"), b"2.2", **{"requires-python": "<3"})
    index.publish("shed-one", WHEEL.format("2.1"), b"2.1", yanked="broken")
    index.publish("shed-one", WHEEL.format("2.0"), b"2.0", **{"requires-python": ">=3.8"})
    index.publish("shed-one", "other-9.0-py3-none-any.whl", b"9")
    assert fetch("shed-one", tmp_path).name == WHEEL.format("2.0")
    assert fetch("shed-one==2.1", tmp_path).name == WHEEL.format("2.1")
    assert fetch("shed-one", tmp_path, python="2.7").name == WHEEL.format("2.2")
    with pytest.raises(UsageError, match="no wheel for this platform"):
        fetch("shed-one==3.0", tmp_path, kind="wheel")


def test_html_pages_are_read_too(index: Index, tmp_path: Path) -> None:
    """PEP 503: links relative to the page or its base, hash in the fragment, escaped attributes."""
    sha256 = hashlib.sha256(b"1").hexdigest()
    index.files[f"/else/{WHEEL.format('1.0')}"] = b"1"
    index.html("shed-one", f'<base href="{index.url}/else/">',
               f'<a href="{WHEEL.format("1.0")}#sha256={sha256}" data-requires-python="&gt;=3.8">x</a>',
               f'<a href="{WHEEL.format("2.0")}#sha256={sha256}" data-yanked="bad">x</a>', "<a>nothing</a>")
    assert fetch("shed-one", tmp_path).read_bytes() == b"1"


def test_folders_are_searched_beside_the_index(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wheels of find-links and of a file:// index count, also where the index does not know the package."""
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / WHEEL.format("1.0")).write_bytes(b"link")
    (tmp_path / "simple/shed-one").mkdir(parents=True)
    (tmp_path / "simple/shed-one" / WHEEL.format("1.1")).write_bytes(b"page")
    (tmp_path / "simple/shed-one/index.html").write_text(f'<a href="{WHEEL.format("1.1")}">x</a>')
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path}/links /nowhere")
    assert fetch("shed-one", tmp_path / "out").read_bytes() == b"link"
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"file://{tmp_path}/simple file:///nowhere")
    assert fetch("shed-one", tmp_path / "out").read_bytes() == b"page"


@pytest.mark.parametrize(("requirement", "why"), [
    ("shed-none", "no configured index knows"), ("shed-one==9", "no version ==9"), ("shed one", "not a requirement"),
    ("-r x", "not a requirement"), ("shed-one @ http://x/y.whl", "names a URL"), ("../shed", "not a requirement"),
])
def test_what_no_index_has_is_a_usage_error(index: Index, tmp_path: Path, requirement: str, why: str) -> None:
    """Unknown names and versions and what is no requirement are told apart, with a remedy."""
    index.publish("shed-one", WHEEL.format("1.0"), b"1")
    with pytest.raises(UsageError, match=why) as caught:
        fetch(requirement, tmp_path)
    assert caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_a_kind_that_is_not_there_is_a_usage_error(index: Index, tmp_path: Path) -> None:
    """The message names the kind and the versions there are."""
    index.publish("shed-one", WHEEL.format("1.0"), b"1")
    with pytest.raises(UsageError, match=r"no source distribution.*1\.0"):
        fetch("shed-one", tmp_path, kind="sdist")


def test_other_bytes_than_the_index_says_are_never_used(index: Index, tmp_path: Path) -> None:
    """A wrong sha256 leaves no file; one the index does not tell is not fetched at all."""
    index.publish("shed-one", WHEEL.format("1.0"), b"true")
    index.files[f"/files/{WHEEL.format('1.0')}"] = b"fake"
    with pytest.raises(EnvironmentFault, match="not used"):
        fetch("shed-one", tmp_path)
    index.publish("shed-two", "shed_two-1.0.tar.gz", b"2", hashes={})
    with pytest.raises(EnvironmentFault, match="no sha256"):
        fetch("shed-two", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_download_continues_where_it_stopped(index: Index, tmp_path: Path) -> None:
    """Half a file is not named as a whole one; the next call asks for the rest only."""
    body = os.urandom(100_000)
    index.publish("shed-one", WHEEL.format("1.0"), body)
    index.broken_after = 40_000
    with pytest.raises(EnvironmentFault, match="broke off") as caught:
        fetch("shed-one", tmp_path)
    assert caught.value.retryable
    assert not (tmp_path / WHEEL.format("1.0")).exists()
    index.broken_after = 0
    assert fetch("shed-one", tmp_path).read_bytes() == body
    assert index.seen[-1][1] == "bytes=40000-"
    before = len(index.seen)
    assert fetch("shed-one", tmp_path).read_bytes() == body
    assert [path for path, _, _ in index.seen[before:]] == ["/simple/shed-one/"]
    assert [path.name for path in tmp_path.iterdir()] == [WHEEL.format("1.0")]


def test_a_partial_file_that_is_too_long_is_begun_again(index: Index, tmp_path: Path) -> None:
    """Where the server cannot continue, the whole file is fetched."""
    index.publish("shed-one", WHEEL.format("1.0"), b"short")
    sha256 = hashlib.sha256(b"short").hexdigest()
    (tmp_path / f".{WHEEL.format('1.0')}.{sha256[:12]}.part").write_bytes(b"much too long")
    assert fetch("shed-one", tmp_path).read_bytes() == b"short"


def test_threads_that_fetch_the_same_file_do_not_garble_it(index: Index, tmp_path: Path) -> None:
    """Two fetches at once end with one whole file."""
    body = os.urandom(300_000)
    index.publish("shed-one", WHEEL.format("1.0"), body)
    threads = [threading.Thread(target=fetch, args=("shed-one", tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / WHEEL.format("1.0")).read_bytes() == body
    assert [path.name for path in tmp_path.iterdir()] == [WHEEL.format("1.0")]


def test_trouble_with_the_network_is_an_environment_fault(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused connections, server errors and garbage are the environment's; passwords stay out of the message."""
    index.statuses["/simple/shed-one/"] = [500]
    with pytest.raises(EnvironmentFault, match="500"):
        fetch("shed-one", tmp_path)
    index.pages["/simple/shed-two/"] = ("application/vnd.pypi.simple.v1+json", '{"files": [1]}')
    with pytest.raises(EnvironmentFault, match="protocol"):
        fetch("shed-two", tmp_path)
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:hunter2@127.0.0.1:9/simple")
    with pytest.raises(EnvironmentFault, match="cannot be reached") as caught:
        fetch("shed-one", tmp_path)
    assert "hunter2" not in str(caught.value)


def test_passing_trouble_is_tried_again(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many times as pip's ``retries`` says."""
    monkeypatch.setenv("PIP_RETRIES", "2")
    index.publish("shed-one", WHEEL.format("1.0"), b"1")
    index.statuses["/simple/shed-one/"] = [503, 502]
    assert fetch("shed-one", tmp_path).read_bytes() == b"1"


def test_credentials_go_to_their_host_and_no_further(
    index: Index, elsewhere: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """User and password of an index reach its own files, and no host it links or redirects to."""
    index.login = "me:p@ss"
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:p%40ss@127.0.0.1:{index.port}/simple")
    index.publish("shed-one", WHEEL.format("1.0"), b"1")
    assert fetch("shed-one", tmp_path).read_bytes() == b"1"
    away = f"http://localhost:{elsewhere.port}"
    for number, path in (("2", "/linked"), ("3", "/redirected")):
        body = number.encode()
        index.publish(f"shed-{number}", f"shed_{number}-1.0.tar.gz", body,
                      url=f"{away}/linked" if path == "/linked" else "../../moved")
        elsewhere.files[path] = body
    index.redirects["/moved"] = f"{away}/redirected"
    assert fetch("shed-2", tmp_path).read_bytes() == b"2"
    assert fetch("shed-3", tmp_path).read_bytes() == b"3"
    assert [(path, login) for path, _, login in elsewhere.seen] == [("/linked", None), ("/redirected", None)]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"])
def test_an_index_cannot_name_files_of_this_machine(index: Index, tmp_path: Path, url: str) -> None:
    """Only http and https are followed from a page of the web, in links and in redirects."""
    index.publish("shed-one", WHEEL.format("1.0"), b"1", url=url)
    with pytest.raises(EnvironmentFault):
        fetch("shed-one", tmp_path)
    index.publish("shed-two", "shed_two-1.0.tar.gz", b"1", url="../../moved")
    index.redirects["/moved"] = url
    with pytest.raises(EnvironmentFault):
        fetch("shed-two", tmp_path)


@pytest.mark.parametrize("name", ["../shed_one-1.0.tar.gz", "/tmp/shed_one-1.0.tar.gz", ".shed_one-1.0.tar.gz"])
def test_an_index_cannot_choose_where_a_file_lands(index: Index, tmp_path: Path, name: str) -> None:
    """A file name with a path in it is no file of the package."""
    index.publish("shed-one", name, b"1")
    with pytest.raises(UsageError):
        fetch("shed-one", tmp_path / "in")
    assert not (tmp_path / "shed_one-1.0.tar.gz").exists()
