"""``woodshed image``: what each command says, leaves, and refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import ocikit as oci
from kit import leftovers, woodshed

pytestmark = pytest.mark.skipif(not oci.has_busybox(), reason=oci.NO_BUSYBOX)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def box(tmp_path: Path) -> str:
    return oci.layout(tmp_path / "box", oci.busybox_layer(), inner={"Env": ["PATH=/bin"]})


def test_pull_list_run_gc(home: Path, box: str) -> None:
    """An image is pulled under a name, listed, used by that name, and gone when it is collected."""
    assert json.loads(woodshed("image", "list", "--json", home=home).stdout) == {"images": []}
    made = json.loads(woodshed("image", "pull", box, "--as", "mine:1", "--json", home=home).stdout)
    assert (made["layers"], len(made["id"])) == (1, 64)
    (row,) = json.loads(woodshed("image", "list", "--json", home=home).stdout)["images"]
    assert (row["name"], row["id"], row["complete"]) == ("docker.io/library/mine:1", made["id"], True)
    assert "mine:1" in woodshed("image", "list", home=home).stdout
    ran = woodshed("sandbox", "run", "--image", "mine:1", "--", "echo", "inside", home=home)
    assert ran.stdout == "inside\n"
    assert json.loads(woodshed("image", "gc", "--json", home=home).stdout)["layers"] == 0
    gone = json.loads(woodshed("image", "gc", "--days", "0", "--json", home=home).stdout)
    assert gone["layers"] >= 1
    assert gone["images"] == ["docker.io/library/mine:1"]
    assert json.loads(woodshed("image", "list", "--json", home=home).stdout) == {"images": []}
    assert leftovers(home) == []


def test_a_sandbox_is_the_images_unless_an_option_says(home: Path, tmp_path: Path) -> None:
    """WORKDIR and USER of an image hold in `sandbox run`; --user says another one."""
    image = oci.layout(tmp_path / "u", oci.busybox_layer(), inner={
        "Env": ["PATH=/bin"], "WorkingDir": "/srv", "User": "app:staff"})
    by_image = woodshed("sandbox", "run", "--image", image, "--", "sh", "-c", "id -u; id -g; pwd", home=home)
    if os.geteuid() == 0:
        assert by_image.stdout.split() == ["1000", "50", "/srv"]
    else:
        assert by_image.returncode != 0
        assert "users: commands are to run as app" in by_image.stderr
    root = woodshed("sandbox", "run", "--image", image, "--user", "root", "--", "sh", "-c", "id -u; pwd", home=home)
    assert root.stdout.split() == ["0", "/srv"]


def test_build(home: Path, box: str, tmp_path: Path) -> None:
    """A Dockerfile is built under a name, with arguments and a target; each line is told as it is done."""
    assert woodshed("image", "pull", box, "--as", "box", home=home).returncode == 0
    (tmp_path / "c").mkdir()
    (tmp_path / "c/f").write_text("copied")
    (tmp_path / "c/Dockerfile").write_text(
        "ARG V=none\nFROM box AS one\nARG V\nRUN echo made $V | cat > /v\nFROM one\nCOPY f /f\n")
    done = woodshed("image", "build", tmp_path / "c", "-t", "app", "--build-arg", "V=7", home=home)
    assert done.returncode == 0, done.stderr
    assert "line 4: RUN echo made $V" in done.stderr
    assert "app is ready: 3 layers" in done.stdout
    assert woodshed("sandbox", "run", "--image", "app", "--", "cat", "/v", "/f", home=home).stdout == "made 7\ncopied"
    one = woodshed("image", "build", tmp_path / "c", "--target", "one", "--build-arg", "V=7", "-q", home=home)
    assert "2 layers" in one.stdout
    assert one.stderr == ""
    ident = json.loads(woodshed("image", "build", tmp_path / "c", "--json", home=home).stdout)["id"]
    again = woodshed("sandbox", "run", "--image", f"id:{ident}", "--", "cat", "/v", home=home)
    assert again.stdout == "made none\n"
    by_path = woodshed("sandbox", "run", "--image", f"dockerfile:{tmp_path / 'c'}", "--", "cat", "/v", home=home)
    assert by_path.stdout == "made none\n"
    assert leftovers(home) == []


@pytest.mark.parametrize(("words", "code", "why"), [
    (("pull", "Not A Name"), 2, "no name of an image"),
    (("pull", "oci:/nowhere", "--as", "x"), 2, "no file or folder"),
    (("pull", "oci:/nowhere"), 2, "needs a name"),
    (("pull", "localhost:1/a"), 1, "cannot be reached"),
    (("build", "/nowhere"), 2, "cannot be read"),
    (("build", "{tmp}", "--build-arg", "x"), 2, "is not NAME=VALUE"),
    (("build", "{tmp}", "--target", "nope"), 2, "no stage 'nope'"),
    (("build", "{tmp}", "-t", "Bad Name"), 2, "no name"),
    (("build", "{tmp}"), 2, "line 2"),
])
def test_mistakes(home: Path, tmp_path: Path, words: tuple[str, ...], code: int, why: str) -> None:
    """Wrong input exits 2 and says what is wrong; what is not there exits 1; both as an object, too."""
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY nothing /\n")
    told = [word.format(tmp=tmp_path) for word in words]
    env = {"DOCKER_CONFIG": os.devnull}
    done = woodshed("image", *told, "--json", home=home, env=env)
    assert (done.returncode, why in done.stderr) == (code, True), done.stderr
    assert why in json.loads(done.stdout.splitlines()[-1])["error"]
