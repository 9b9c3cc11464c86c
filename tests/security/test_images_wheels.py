"""Packages are hostile: preparing an image runs none of their code on the host."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from woodshed import pypi
from woodshed.errors import EnvironmentFault, ImageFault
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.images import BuildJob, BuildResult, Images
from woodshed.sandbox.images.build import run_build
from woodshed.sandbox.images.python import find

LATE = ("keyring", "brotli", "socks", "chardet", "simplejson", "truststore", "sitecustomize", "usercustomize", "pip",
        "colorama", "rich", "setuptools", "_distutils_hack")
"""Modules that Python or pip would import where they are there."""


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where the configured Python index cannot be reached."""
    try:
        pypi.fetch("iniconfig==2.3.1", tmp_path_factory.mktemp("index"))
    except EnvironmentFault as error:
        pytest.skip(f"needs the Python index that pip is configured for: {error}")


@pytest.fixture
def images(shed_home: Path, index: None) -> Iterator[Images]:
    made = Images(shed_home)
    yield made
    made.close()


def hostile(folder: Path, marker: Path) -> Path:
    """A wheel that tries every way to run at or after its installation."""
    attack = f"open({str(marker)!r}, 'w').close()\n"
    info = "shedevil-1.0.dist-info"
    files = {f"{name}/__init__.py": attack for name in LATE if name != "pip"}
    files |= {
        "shedevil.pth": f"import os; {attack}",
        "pip/_internal/cli/late.py": attack,
        "shedevil/broken.py": "def x(:\n",
        "shedevil-1.0.data/data/bin/python": f"#!/bin/sh\ntouch {marker}\n",
        "shedevil-1.0.data/scripts/python3": f"#!python\n{attack}",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: shedevil\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    folder.mkdir(exist_ok=True)
    path = folder / "shedevil-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_a_wheel_runs_nothing_on_the_host(images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No .pth, sitecustomize, late import or replaced python of a wheel runs; the host's Python is untouched.

    Control: the same wheel, unpacked as pip does and followed by a start of that environment's Python, strikes.
    """
    marker = tmp_path / "struck"
    wheel = hostile(tmp_path / "links", marker)
    python = find(tmp_path)
    before = hashlib.sha256(python.exe.read_bytes()).hexdigest()
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    made = images.prepare(EnvironmentSpec(requirements=("shedevil==1.0",)))
    assert any(layer.glob("opt/venv/lib/python*/site-packages/shedevil.pth") for layer in made.lowers)
    assert not marker.exists()
    assert hashlib.sha256(python.exe.read_bytes()).hexdigest() == before

    control = tmp_path / "control"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", control], check=True)
    site = next(control.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    subprocess.run([control / "bin/python", "-c", "pass"], check=False, capture_output=True)
    assert marker.exists()


def source(folder: Path, marker: Path) -> Path:
    """A source distribution whose own build backend strikes, then makes a wheel that tells what it saw."""
    backend = f'''
        import os, zipfile
        try:
            open({str(marker)!r}, "w").close()
        except OSError:
            pass
        def build_wheel(directory, config_settings=None, metadata_directory=None):
            info, name = "shedsource-1.0.dist-info", "shedsource-1.0-py3-none-any.whl"
            saw = {{"home": sorted(os.listdir("/home")), "shadow": os.path.exists("/etc/shadow"),
                   "net": sorted(os.listdir("/sys/class/net")) if os.path.exists("/sys/class/net") else []}}
            with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
                wheel.writestr("shedsource.py", f"saw = {{saw!r}}")
                wheel.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: shedsource\\nVersion: 1.0\\n")
                wheel.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
                wheel.writestr(info + "/RECORD", "")
            return name
    '''
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": textwrap.dedent(backend),
        "PKG-INFO": "Metadata-Version: 2.1\nName: shedsource\nVersion: 1.0\n",
    }
    folder.mkdir(exist_ok=True)
    path = folder / "shedsource-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"shedsource-1.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


async def test_a_source_distribution_is_built_inside_a_sandbox_only(
    shed_home: Path, index: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build backend runs in a sandbox: it sees no host file and leaves no trace, and its wheel is used.

    Control: the same backend run on the host leaves its mark.
    """
    native = pytest.importorskip("woodshed.sandbox.native.engine")
    marker = tmp_path / "struck"
    archive = source(tmp_path / "links", marker)
    monkeypatch.setenv("PIP_FIND_LINKS", str(archive.parent))
    loop = asyncio.get_running_loop()

    def build(job: BuildJob) -> BuildResult:
        return asyncio.run_coroutine_threadsafe(run_build(engine, job), loop).result()

    images = Images(shed_home, build)
    engine = native.NativeEngine(tmp_path / "engine", images=images)
    try:
        spec = EnvironmentSpec(requirements=("shedsource==1.0",))
        made = await asyncio.to_thread(images.prepare, spec)
        box = await engine.create(spec, SandboxPolicy())
        assert (await box.exec("python -c 'import shedsource, pytest'")).exit_code == 0
    finally:
        await engine.close()
        images.close()
    assert not marker.exists()
    pattern = "opt/venv/lib/python*/site-packages/shedsource.py"
    module = next(path for layer in made.lowers for path in layer.glob(pattern))
    assert "'shadow': False" in module.read_text()
    assert not list((shed_home / "layers/.tmp").iterdir())

    pypi.extract(archive, tmp_path / "control", strip=1)
    control = await asyncio.create_subprocess_exec(sys.executable, "-c", "import backend", cwd=tmp_path / "control")
    assert await control.wait() == 0
    assert marker.exists()


@pytest.mark.slow
async def test_a_package_that_was_never_published_as_a_wheel_can_be_required(
    shed_home: Path, index: None, tmp_path: Path
) -> None:
    """docopt 0.6.2 exists as a source distribution of setuptools only; required, it can be imported."""
    native = pytest.importorskip("woodshed.sandbox.native.engine")
    loop = asyncio.get_running_loop()

    def build(job: BuildJob) -> BuildResult:
        return asyncio.run_coroutine_threadsafe(run_build(engine, job), loop).result()

    images = Images(shed_home, build)
    engine = native.NativeEngine(tmp_path / "engine", images=images)
    try:
        box = await engine.create(EnvironmentSpec(requirements=("docopt==0.6.2",)), SandboxPolicy())
        said = await box.exec("python -c 'import docopt; print(docopt.__version__)'")
        assert said.stdout == b"0.6.2\n"
    finally:
        await engine.close()
        images.close()


@pytest.mark.parametrize("made", ["other-1.0-py3-none-any.whl", "shedsource-2.0-py3-none-any.whl", "evil", ""])
def test_a_build_cannot_pass_off_another_package(
    made: str, images: Images, shed_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a build leaves is taken only under the name and version that were asked for; links are never followed."""
    archive = source(tmp_path / "links", tmp_path / "struck")
    monkeypatch.setenv("PIP_FIND_LINKS", str(archive.parent))

    def build(job: BuildJob) -> BuildResult:
        if made:
            (job.into / made).write_bytes(b"PK")
        (job.into / "shedsource-1.0-py3-none-any.whl").symlink_to("/etc/passwd")
        return BuildResult(0, "")

    images = Images(shed_home, build)
    with pytest.raises(ImageFault, match="made no wheel of that name"):
        images.prepare(EnvironmentSpec(requirements=("shedsource<2",)))
    images.close()


def test_a_build_that_fails_shows_its_output(
    shed_home: Path, index: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requirement, the exit code and the end of the output stand in the fault."""
    archive = source(tmp_path / "links", tmp_path / "struck")
    monkeypatch.setenv("PIP_FIND_LINKS", str(archive.parent))
    images = Images(shed_home, lambda job: BuildResult(3, "compiler missing"))
    with pytest.raises(ImageFault, match=r"(?s)shedsource.*ended with 3.*compiler missing"):
        images.prepare(EnvironmentSpec(requirements=("shedsource<3",)))
    images.close()


async def test_inside_there_is_no_home_no_shadow_and_no_write_to_usr(
    shed_home: Path, index: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox of the host image sees no home, secret or host network; /usr and the Python are read-only.

    Control: the same looks find these things on the host.
    """
    native = pytest.importorskip("woodshed.sandbox.native.engine")
    home = Path.home()
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    images = Images(shed_home)
    base = images._interpreter().base
    engine = native.NativeEngine(tmp_path / "engine", images=images)
    try:
        box = await engine.create(EnvironmentSpec(), SandboxPolicy())
        looks = {
            "secret": f"cat {secret}", "shadow": "ls /etc/shadow", "usr": "touch /usr/owned",
            "python": f"touch {base}/owned", "state": f"ls {shed_home}",
        }
        for name, command in looks.items():
            assert (await box.exec(command)).exit_code != 0, name
        seen = (await box.exec(f"find {home} -mindepth 1 -maxdepth 1")).stdout.decode().split()
        inside_home = Path(os.path.realpath(base)).is_relative_to(home)
        assert seen == ([str(home / base.relative_to(home).parts[0])] if inside_home else [])
        works = await box.exec("echo 'def test_it(): pass' > test_it.py && pytest -q test_it.py && which python")
        assert works.exit_code == 0, works
        assert b"/opt/venv/bin/python" in works.stdout
    finally:
        await engine.close()
        images.close()
    assert secret.read_text() == "host secret"
    assert Path("/etc/shadow").exists() or not Path("/etc/passwd").exists()
