"""What remote engines are made of: flattened layers, the copied Python, listings of changes that a box sends."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from woodshed.errors import Unsupported
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.docker.api import Attached
from woodshed.sandbox.docker.engine import DockerEngine
from woodshed.sandbox.native.below import OPAQUE
from woodshed.sandbox.remote import changes, flat
from woodshed.sandbox.remote.python import interpreter


def _layers(folder: Path) -> list[Path]:
    """Topmost first: the upper one replaces, hides and adds."""
    lower, upper = folder / "lower", folder / "upper"
    for path in (lower / "kept", lower / "hidden", lower / "mixed", upper / "hidden", upper / "mixed"):
        path.mkdir(parents=True)
    (lower / "kept" / "file").write_text("lower")
    (lower / "hidden" / "gone").write_text("gone")
    (lower / "mixed" / "both").write_text("lower")
    (lower / "mixed" / "below").write_text("below")
    (upper / "hidden" / "new").write_text("new")
    (upper / "mixed" / "both").write_text("upper")
    (upper / "link").symlink_to("/kept/file")
    os.link(upper / "mixed" / "both", upper / "twin")
    os.setxattr(upper / "hidden", OPAQUE, b"y")
    return [upper, lower]


def test_layers_are_flattened_as_an_overlay_shows_them(tmp_path: Path) -> None:
    """The topmost file wins, opaque directories hide, others merge, links and twins stay."""
    try:
        layers = _layers(tmp_path)
    except OSError:
        pytest.skip("this file system has no user extended attributes: set TMPDIR to another")
    packed = io.BytesIO()
    flat.write(layers, packed)
    packed.seek(0)
    with tarfile.open(fileobj=packed) as archive:
        names = {member.name for member in archive}
        assert names - {"./", "."} == {"kept", "kept/file", "hidden", "hidden/new", "mixed", "mixed/both",
                                       "mixed/below", "link", "twin"}
        both = archive.extractfile("mixed/both")
        assert both is not None
        assert both.read() == b"upper"
        assert {archive.getmember("mixed/both").type, archive.getmember("twin").type} == {tarfile.REGTYPE,
                                                                                        tarfile.LNKTYPE}
        assert archive.getmember("link").linkname == "/kept/file"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a whiteout (mknod): run the tests as root")
def test_a_whiteout_hides_what_lies_below(tmp_path: Path) -> None:
    """A character device 0:0 on top means that nothing stands there."""
    lower, upper = tmp_path / "lower", tmp_path / "upper"
    lower.mkdir()
    upper.mkdir()
    (lower / "gone").write_text("x")
    os.mknod(upper / "gone", 0o20000, 0)
    assert list(flat.entries([upper, lower])) == []
    assert [path for path, *_ in flat.entries([lower])] == ["gone"]


def test_the_copied_python_runs_alone(tmp_path: Path) -> None:
    """Started by the copied loader with nothing but the copied files it loads PID 1's modules."""
    made = interpreter(tmp_path / "python")
    here = str(made.folder)
    argv = [part.replace("/.woodshed", here) for part in made.argv]
    argv[argv.index("-c") + 1] = (
        "import sys; sys.path.insert(0, sys.argv[1]); import boot; boot.parents(sys.argv[1]);"
        "import woodshed.sandbox.remote.inside.serve;"
        "print(all(f.startswith(sys.argv[2]) for m in list(sys.modules.values())"
        " if (f := getattr(m, '__file__', None))))")
    done = subprocess.run([*argv, here], env={"PYTHONHOME": here}, capture_output=True, check=False, timeout=60)
    assert done.stdout == b"True\n", done.stderr


@pytest.mark.parametrize("line", [
    ["entry", "/a/../b", 0o100644, 1, ""], ["entry", "a", 0o100644, 1, ""], ["entry", "//a", 0o100644, 1, ""],
    ["entry", "/a", "mode", 1, ""], ["entry", "/a", 0o100644], ["other", "/a"], "text", 7, ["deleted", "/"],
])
def test_a_listing_that_is_none_is_refused(line: object) -> None:
    """Paths that are not absolute and plain, and lines of another form, make a listing an OSError, not a change."""
    sent = io.BytesIO(json.dumps(line).encode() + b'\n["end"]\n')
    with pytest.raises(OSError, match="no listing"):
        changes._read(sent.read, [])
    told: list[list[object]] = []
    changes._read(io.BytesIO(b'["deleted","/a"]\n["end"]\n').read, told)
    assert told == [["deleted", "/a"]]
    with pytest.raises(OSError, match="no listing"):
        changes._read(io.BytesIO(b'["deleted","/a"]\n').read, [])


def test_pieces_of_an_attached_stream_are_put_together() -> None:
    """Docker's headers are taken off wherever a read cuts them; another stream than output is dropped."""
    def piece(stream: int, data: bytes) -> bytes:
        return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data

    whole = piece(1, b"one") + piece(2, b"error") + piece(1, b"") + piece(1, b"two")
    for step in (1, 2, 7, 100):
        attached = Attached(-1)
        assert b"".join(attached.decode(whole[at:at + step]) for at in range(0, len(whole), step)) == b"onetwo"


@pytest.mark.parametrize("policy", [
    {"network": {"rules": [{"host": "example.com"}]}}, {"directories": [{"path": "/workspace/x", "access": "read"}]},
    {"commands": {"allow": ["sh"]}}, {"commands": {"deny": ["sh"]}}, {"noexec": True}, {"privileges": "none"},
])
def test_what_a_container_would_not_hold_is_refused(policy: dict[str, object], tmp_path: Path) -> None:
    """A policy rule that the engine lacks is Unsupported before anything is made; limits alone are taken."""
    engine = DockerEngine(tmp_path, socket=tmp_path / "none", runtime="")
    with pytest.raises(Unsupported, match="docker engine"):
        engine.check(EnvironmentSpec(), SandboxPolicy.parse(policy))
    engine.check(EnvironmentSpec(), SandboxPolicy(limits=Limits(memory_mb=100, cpus=1.0)))
