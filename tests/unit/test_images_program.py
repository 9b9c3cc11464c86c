"""Programs of others as layers: made once, read-only, without running a line of theirs, and seen by attempts alone."""

from __future__ import annotations

import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from woodshed.errors import EnvironmentFault, ImageFault, Unsupported, UsageError
from woodshed.model import EnvironmentSpec, Program, SandboxPolicy
from woodshed.sandbox.conformance.kit import MemoryBlobs
from woodshed.sandbox.images import Images
from woodshed.sandbox.native.engine import NativeEngine

NPM = """#!/bin/sh
echo "$*" >> "{log}"
{more}
while [ "$1" != --prefix ]; do shift; done
mkdir -p "$2/node_modules/.bin" "$2/node_modules/tool"
printf '#!/bin/sh\\necho from npm\\n' > "$2/node_modules/tool/cli.js"
ln -s ../tool/cli.js "$2/node_modules/.bin/tool"
echo '{{"lockfileVersion": 3}}' > "$2/package-lock.json"
"""


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An npm that installs one package, and writes down how it was called."""
    return fake(tmp_path, monkeypatch)


def fake(folder: Path, patch: pytest.MonkeyPatch, more: str = "") -> Path:
    (folder / "npm").write_text(NPM.format(log=folder / "log", more=more))
    (folder / "npm").chmod(0o755)
    found = {"npm": str(folder / "npm"), "node": "/usr/bin/env"}
    patch.setattr("woodshed.sandbox.images.program.shutil.which", found.get)
    return folder / "log"


@pytest.fixture
async def engine(shed_home: Path) -> AsyncIterator[NativeEngine]:
    engine = NativeEngine(shed_home)
    yield engine
    await engine.close()


def world(**program: object) -> EnvironmentSpec:
    return EnvironmentSpec(programs=(Program.parse({"name": "tool", **program}),))


async def test_a_program_stands_in_its_place(npm: Path, engine: NativeEngine) -> None:
    """Its commands run, nobody inside can change it, no capture shows it, and it is installed once."""
    spec = world(npm=["tool@1.2.3"])
    first = await engine.create(spec, SandboxPolicy())
    done = await first.exec("/opt/programs/tool/bin/tool; echo x >> /opt/programs/tool/bin/tool; "
                            "rm -rf /opt/programs/tool; rm /opt/programs/tool/package.json; echo y > /workspace/y")
    assert done.stdout.startswith(b"from npm\n")
    assert b"Read-only" in done.stderr
    second = await engine.create(spec, SandboxPolicy())
    assert (await second.exec("/opt/programs/tool/bin/tool")).stdout == b"from npm\n"
    await first.kill_all()
    changed = {change.path for change in (await first.changes(MemoryBlobs(), roots=("/",))).changes}
    assert "/workspace/y" in changed
    assert not any(path.startswith("/opt") for path in changed)
    [call] = npm.read_text().splitlines()
    assert {"--ignore-scripts", "tool@1.2.3"} <= set(call.split())
    plain = await engine.create(EnvironmentSpec(), SandboxPolicy())
    assert (await plain.exec("ls /opt/programs")).exit_code != 0
    assert plain.image_digest != first.image_digest == second.image_digest


def test_wheels_are_unpacked_into_an_environment_of_their_own(
    tmp_path: Path, shed_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of pip has its own packages, without those that are left out; the task's environment has none."""
    for name, needs in (("prog", ["extra"]), ("extra", [])):
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            about, lines = f"{name}-1.0.dist-info", "".join(f"Requires-Dist: {need}\n" for need in needs)
            wheel.writestr(f"{name}.py", "def main():\n    print('from pip')\n")
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\n"
                                             "Tag: py3-none-any\n")
            wheel.writestr(f"{about}/entry_points.txt", f"[console_scripts]\n{name} = {name}:main\n")
            wheel.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("WOODSHED_PIP_ARGS", f"--no-index --find-links {tmp_path}")
    images = Images(shed_home)
    root = images.prepare(world(pip=["prog==1.0"], without=["extra"]))
    place = root.lowers[0] / "opt/programs/tool"
    first = (place / "bin/prog").read_text().partition("\nimport ")[0]  # pip's wrapper by sh, where paths are long
    assert "/opt/programs/tool/bin/python" in first
    assert str(place) not in first
    assert [path.name for path in place.glob("lib/python*/site-packages/*.py")] == ["prog.py"]
    assert images.prepare(EnvironmentSpec()).lowers == root.lowers[1:]
    images.close()


@pytest.mark.parametrize(("program", "said"), [
    ({}, "by one of them"), ({"npm": ["a@1"], "pip": ["a==1"]}, "by one of them"), ({"npm": ["a"]}, "with its version"),
    ({"npm": ["--global@1"]}, "with its version"), ({"npm": ["https://x/y@1"]}, "with its version"),
    ({"npm": ["a@latest"]}, "with its version"), ({"pip": ["--index-url=x"]}, "option"),
])
def test_a_bad_declaration_is_a_usage_error(program: dict[str, list[str]], said: str, shed_home: Path) -> None:
    """What is no package with its version, or neither or both of two ways, installs nothing."""
    images = Images(shed_home)
    with pytest.raises(UsageError, match=said):
        images.prepare(world(**program))
    images.close()


def bare(root: Path, *programs: str) -> Path:
    """A root file system that has these programs, each of which is a shell."""
    for program in ("bin/sh", *programs):
        (root / program).parent.mkdir(parents=True, exist_ok=True)
        (root / program).write_text("#!/bin/sh\n")
        (root / program).chmod(0o755)
    return root


def test_an_agent_of_npm_stands_in_any_image_that_has_node(
    shed_home: Path, npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layer lies over the image, which needs a node of its own, not this machine's; one of pip is refused."""
    found = {"npm": str(npm.parent / "npm"), "node": "/home/x/node"}
    monkeypatch.setattr("woodshed.sandbox.images.program.shutil.which", found.get)
    images, root = Images(shed_home), bare(tmp_path / "root")
    with pytest.raises(Unsupported, match="has none on its PATH"):
        images.prepare(world(npm=["a@1.0"]).model_copy(update={"image": f"dir:{root}"}))
    spec = world(npm=["a@1.0"]).model_copy(update={"image": f"dir:{bare(root, 'usr/bin/node')}"})
    ready = images.prepare(spec)
    [place] = [program.place for program in spec.programs]
    [layer] = [lower for lower in ready.lowers if (lower / place.lstrip("/")).exists()]
    assert root in ready.lowers[ready.lowers.index(layer) + 1:]
    with pytest.raises(Unsupported, match="installed by pip"):
        images.prepare(world(pip=["a==1.0"]).model_copy(update={"image": f"dir:{root}"}))
    images.close()


def test_what_this_machine_lacks_is_named(shed_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without node, with one that no sandbox sees, or with another image, it is Unsupported, and says what to do."""
    images, which = Images(shed_home), "woodshed.sandbox.images.program.shutil.which"
    monkeypatch.setattr(which, lambda name: None)
    with pytest.raises(Unsupported, match=r"install Node\.js"):
        images.prepare(world(npm=["a@1.0"]))
    monkeypatch.setattr(which, lambda name: str(tmp_path / name))
    with pytest.raises(Unsupported, match="below /usr"):
        images.prepare(world(npm=["a@1.0"]))
    with pytest.raises(Unsupported, match="programs with the image"):
        images.prepare(world(npm=["a@1.0"]).model_copy(update={"image": f"dir:{bare(tmp_path / 'root')}"}))
    images.close()


def test_an_installation_that_fails_leaves_nothing(
    shed_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry out of reach may be asked again, a package that is not there is for good; no layer stays."""
    images = Images(shed_home)
    before = set((shed_home / "layers").iterdir())
    for more, kind in (("echo ENOTFOUND >&2; exit 1", EnvironmentFault), ("echo E404 >&2; exit 1", ImageFault)):
        fake(tmp_path, monkeypatch, more)
        with pytest.raises(kind) as fault:
            images.prepare(world(npm=["absent@9.9.9"]))
        assert fault.value.retryable is (kind is EnvironmentFault)
    assert set((shed_home / "layers").iterdir()) == before
    images.close()
