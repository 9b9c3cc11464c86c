"""The host image: a generated skeleton, the host's /usr, a virtual environment of pinned wheels; nothing of a home."""

from __future__ import annotations

import http.server
import importlib.util
import os
import stat
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from woodshed import pypi
from woodshed.errors import EnvironmentFault, ImageFault, UsageError
from woodshed.model import EnvironmentSpec
from woodshed.sandbox.images import Images, Rootfs
from woodshed.sandbox.images.host import DIRECTORIES, identity, shell, skeleton
from woodshed.sandbox.images.python import Interpreter
from woodshed.sandbox.images.tree import Plan

SYSTEM = Interpreter(Path("/usr"), Path("/usr/bin/python3.11"), (3, 11, 2), "tag")
NODE = Interpreter(Path("/home/me/py/3.12"), Path("/home/me/py/3.12/bin/python3.12"), (3, 12, 0), "tag")


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where the configured Python index cannot be reached."""
    try:
        pypi.fetch("iniconfig==2.3.1", tmp_path_factory.mktemp("index"))
    except EnvironmentFault as error:
        pytest.skip(f"needs the Python index that pip is configured for: {error}")


@pytest.fixture(scope="session")
def images(shed_home: Path, index: None) -> Iterator[Images]:
    """Images on the session's home, so that the base layer is made once."""
    made = Images(shed_home)
    yield made
    made.close()


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A host with a merged /usr, and things that must not come along."""
    host = tmp_path / "host"
    for name in ("usr/bin", "usr/lib", "etc/ssl/certs", "etc/ssl/private", "etc/alternatives", "home/me", "root/.ssh"):
        (host / name).mkdir(parents=True)
    (host / "usr/bin/sh").write_text("")
    (host / "bin").symlink_to("usr/bin")
    (host / "lib").symlink_to("usr/lib")
    for name in ("shadow", "ssl/private/key", "gitconfig", "ld.so.preload", "ssl/certs/private.pem", "ld.so.cache",
                 "ssl/certs/ca.pem", "passwd", "resolv.conf", "hosts"):
        (host / "etc" / name).write_text(f"host's {name}")
    (host / "etc/ssl/certs/private.pem").chmod(0o640)
    (host / "etc/alternatives/editor").symlink_to("/usr/bin/vi")
    (host / "home/me/secret").write_text("")
    return host


def paths(plan: Plan, kind: str) -> set[str]:
    return {path for path, entry in plan.items() if entry.kind == kind}


def test_the_skeleton_has_what_programs_need_and_nothing_private(machine: Path) -> None:
    """World-readable configuration of a fixed list comes along, identities are generated, secrets and homes are not."""
    plan, binds = skeleton(SYSTEM, machine)
    files = paths(plan, "file")
    assert {"etc/ld.so.cache", "etc/ssl/certs/ca.pem", "etc/passwd", "etc/hosts"} <= files
    assert not any("shadow" in path or "private" in path or "preload" in path or "git" in path for path in plan)
    assert not any(path.startswith(("home/", "root/")) for path in plan)
    for name in ("passwd", "hosts", "resolv.conf"):
        content = plan[f"etc/{name}"].content
        assert isinstance(content, bytes)
        assert b"host's" not in content
    assert plan["etc/alternatives/editor"].content == "/usr/bin/vi"
    assert {(str(bind.source), bind.target) for bind in binds} == {(str(machine / "usr"), "/usr")}
    assert set(DIRECTORIES) <= paths(plan, "directory")


def test_a_merged_usr_gives_links_and_an_unmerged_one_binds(machine: Path) -> None:
    """/bin and /lib stand in the sandbox as they stand on the host."""
    plan, _ = skeleton(SYSTEM, machine)
    assert {path: plan[path].content for path in ("bin", "lib")} == {"bin": "usr/bin", "lib": "usr/lib"}
    (machine / "bin").unlink()
    (machine / "bin").mkdir()
    (machine / "bin/sh").write_text("")
    (machine / "bin/bash").write_text("")
    plan, binds = skeleton(SYSTEM, machine)
    assert plan["bin"].kind == "directory"
    assert ("/bin", machine / "bin") in {(bind.target, bind.source) for bind in binds}
    assert "sbin" not in plan
    assert shell(machine) == "/bin/bash"


def test_a_python_outside_usr_is_bound_at_its_own_path(machine: Path) -> None:
    """Only the base is bound; its parents are empty folders."""
    plan, binds = skeleton(NODE, machine)
    assert ("/home/me/py/3.12", NODE.base) in {(bind.target, bind.source) for bind in binds}
    assert {path for path in plan if path.startswith("home/")} == {"home/me", "home/me/py", "home/me/py/3.12"}


def test_a_host_without_usr_or_shell_is_an_image_fault(tmp_path: Path) -> None:
    """The fault says what is missing and what to use instead."""
    with pytest.raises(ImageFault, match="dir:PATH"):
        skeleton(SYSTEM, tmp_path)


def test_the_identity_follows_the_packages_and_the_python(machine: Path) -> None:
    """An installed package, or without a package database a changed /usr/bin, gives another image."""
    seen = {identity(SYSTEM, machine), identity(NODE, machine)}
    os.utime(machine / "usr/bin", (1, 1))
    seen.add(identity(SYSTEM, machine))
    (machine / "var/lib/dpkg").mkdir(parents=True)
    for text in ("Package: a", "Package: b"):
        (machine / "var/lib/dpkg/status").write_text(text)
        seen.add(identity(SYSTEM, machine))
    assert len(seen) == 5
    os.utime(machine / "usr/bin", (2, 2))
    assert identity(SYSTEM, machine) in seen


def site(made: Rootfs) -> Path:
    return next(path for layer in made.lowers for path in layer.glob("opt/venv/lib/python*/site-packages"))


def test_the_base_layer_holds_pytest_and_pip_ready_to_start(images: Images) -> None:
    """pytest and pip are there with scripts of /opt/venv; bytecode is trusted at any time and names /opt/venv."""
    made = images.prepare(EnvironmentSpec())
    names = {path.name.partition("-")[0] for path in site(made).glob("*.dist-info")}
    assert names == {"iniconfig", "packaging", "pip", "pluggy", "pygments", "pytest"}
    script = site(made).parents[2] / "bin/pytest"
    assert script.read_bytes().startswith(b"#!/opt/venv/bin/python\n")
    source = site(made) / "pytest/__init__.py"
    compiled = next((site(made) / "pytest/__pycache__").glob("__init__.*.pyc")).read_bytes()
    assert compiled[4:8] == b"\1\0\0\0"  # PEP 552: hash-based, unchecked
    assert importlib.util.source_hash(source.read_bytes()) == compiled[8:16]
    assert b"/opt/venv/lib/" in compiled
    assert bytes(images.layers.root) not in compiled
    assert made.env["PATH"].startswith("/opt/venv/bin:")
    assert made.digest.startswith("sha256:")


def test_layers_are_ours_readable_without_setuid_and_in_a_private_folder(images: Images) -> None:
    """Everything in a layer is owned by us, readable for all, without setuid or write permission for others."""
    made = images.prepare(EnvironmentSpec())
    assert stat.S_IMODE(images.layers.root.stat().st_mode) == 0o700
    for layer in made.lowers:
        assert layer.parent == images.layers.root
        for path in (layer, *layer.rglob("*")):
            info = path.lstat()
            assert info.st_uid == os.geteuid()
            if not path.is_symlink():
                assert info.st_mode & 0o6000 == 0
                assert info.st_mode & (0o111 if path.is_dir() else 0o444)


def test_another_process_finds_the_same_image(images: Images, shed_home: Path) -> None:
    """The digest and layers of a second Images are the same; nothing is made again."""
    made, before = images.prepare(EnvironmentSpec()), images.layers.sizes()
    again = Images(shed_home)
    assert again.prepare(EnvironmentSpec()) == made
    assert again.layers.sizes() == before
    again.close()


def wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {need}\n" for need in requires)
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip also looks into."""
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_requirements_enter_with_their_needs_and_stay_as_they_were_found(
    images: Images, shed_home: Path, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A requirement's newest version and needs lie over the base; a newer release later changes nothing."""
    wheel(links, "shedone", "1.0", "shedtwo>=2")
    for version in ("1.0", "2.0", "2.1"):
        wheel(links, "shedtwo", version)
    made = images.prepare(EnvironmentSpec(requirements=("shedone",)))
    names = {path.name for path in site(made).glob("*.dist-info")}
    assert names == {"shedone-1.0.dist-info", "shedtwo-2.1.dist-info"}
    assert made.lowers[1:] == images.prepare(EnvironmentSpec()).lowers
    assert {path.name for path in (made.lowers[0] / "opt/venv").rglob("*") if "shed" not in path.name} == {
        "INSTALLER", "METADATA", "RECORD", "REQUESTED", "WHEEL", "__pycache__", "bin", "entry_points.txt", "lib",
        f"python{images._interpreter().short}", "site-packages",
    }
    assert (site(made).parents[2] / "bin/shedone").stat().st_mode & 0o111
    assert made.digest != images.prepare(EnvironmentSpec()).digest
    wheel(links, "shedtwo", "3.0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    later = Images(shed_home)
    assert later.prepare(EnvironmentSpec(requirements=("shedone ", "shedone"))) == made
    later.close()


def test_a_requirement_may_ask_for_another_pytest(images: Images) -> None:
    """The base's version gives way to what the task asks for."""
    made = images.prepare(EnvironmentSpec(requirements=("pytest==8.4.2",)))
    assert [path.name for path in site(made).glob("pytest-*.dist-info")] == ["pytest-8.4.2.dist-info"]


def test_requirements_that_contradict_each_other_are_an_image_fault(images: Images, links: Path) -> None:
    """pip's reason stands in the message; nothing is left of the try."""
    wheel(links, "shedone", "1.0", "shedtwo>=2")
    for version in ("1.0", "2.0"):
        wheel(links, "shedtwo", version)
    with pytest.raises(ImageFault, match="conflicting"):
        images.prepare(EnvironmentSpec(requirements=("shedone==1.0", "shedtwo==1.0")))
    assert not list((images.layers.root / ".tmp").iterdir())


def test_a_requirement_without_a_wheel_is_named(images: Images) -> None:
    """Without a sandbox to build in, a requirement that no index has as a wheel is an image fault that names it."""
    with pytest.raises(ImageFault, match=r"'docopt==0\.6\.2'"):
        images.prepare(EnvironmentSpec(requirements=("docopt==0.6.2",)))


def test_an_index_that_does_not_answer_is_worth_a_retry(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trouble with the network is no fault of the requirement, and no password is shown."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:hunter2@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(EnvironmentFault, match="could not be reached") as caught:
        images.prepare(EnvironmentSpec(requirements=("shednone==1",)))
    assert caught.value.retryable
    assert "hunter2" not in str(caught.value)


def test_an_index_that_refuses_is_no_missing_wheel(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server error is trouble with the index; a 404 would be a missing package."""
    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(500)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        monkeypatch.setenv("PIP_RETRIES", "0")
        try:
            with pytest.raises(EnvironmentFault, match="could not be reached"):
                images.prepare(EnvironmentSpec(requirements=("shednone==2",)))
        finally:
            server.shutdown()
            thread.join()


def test_a_bad_requirement_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """Hostile strings end at the door, with their field."""
    images = Images(tmp_path)
    with pytest.raises(UsageError, match="option of pip"):
        images.prepare(EnvironmentSpec(requirements=("--index-url=http://evil",)))
    assert images.layers.sizes() == {}
    images.close()


def test_the_environment_runs_where_it_was_not_made(images: Images, tmp_path: Path) -> None:
    """The layer's Python starts from elsewhere and finds its own packages."""
    made = images.prepare(EnvironmentSpec())
    venv = site(made).parents[2]
    answer = subprocess.run([venv / "bin/python", "-I", "-B", "-m", "pytest", "--version"], capture_output=True,
                            check=True, cwd=tmp_path)
    assert answer.stdout.startswith(b"pytest 9.2.0")
