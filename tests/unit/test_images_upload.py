"""Uploads: what of the host stands in a sandbox, and what never does."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from woodshed.errors import UsageError
from woodshed.model import EnvironmentSpec, Upload
from woodshed.sandbox.images import Images
from woodshed.sandbox.images.rootfs import Bind, Rootfs
from woodshed.sandbox.images.upload import plan_uploads


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small unpacked root with a shell and links."""
    path = tmp_path / "root"
    for name in ("usr/bin", "workspace", "proc", "dev", "tmp", "root"):
        (path / name).mkdir(parents=True)
    (path / "usr/bin/sh").write_text("#!")
    (path / "bin").symlink_to("usr/bin")
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with everything an upload must mind."""
    path = tmp_path / "source"
    (path / "deep/.git/objects").mkdir(parents=True)
    (path / "deep/.git/HEAD").write_text("secret history")
    (path / ".git").write_text("gitdir: /home/user/repository")
    (path / ".gitignore").write_text("kept")
    (path / "a.py").write_text("print(1)")
    (path / "run").write_text("#!/bin/sh")
    (path / "run").chmod(0o6750)
    (path / "private").write_text("mine")
    (path / "private").chmod(0o600)
    (path / "link").symlink_to("/etc/passwd")
    (path / "folder-link").symlink_to(tmp_path)
    return path


def prepare(tmp_path: Path, root: Path, *uploads: tuple[Path, str]) -> Rootfs:
    images = Images(tmp_path / "home")
    try:
        return images.prepare(EnvironmentSpec(
            image=f"dir:{root}", uploads=tuple(Upload(source=path, target=target) for path, target in uploads)))
    finally:
        images.close()


def test_files_come_with_normal_modes_links_as_links_and_no_history(tmp_path: Path, root: Path, source: Path) -> None:
    """Modes are 0644 or 0755 without setuid, links are copied and not followed, every ``.git`` is dropped."""
    layer = prepare(tmp_path, root, (source, "/workspace/src")).lowers[0]
    top = layer / "workspace/src"
    found = {str(path.relative_to(top)): path for path in top.rglob("*")}
    assert set(found) == {"a.py", "run", "private", "link", "folder-link", "deep", ".gitignore"}
    modes = {name: stat.S_IMODE(path.lstat().st_mode) for name, path in found.items() if not path.is_symlink()}
    assert modes == {"a.py": 0o644, "run": 0o755, "private": 0o644, "deep": 0o755, ".gitignore": 0o644}
    assert str(found["link"].readlink()) == "/etc/passwd"
    assert found["folder-link"].is_symlink()
    assert {path.lstat().st_uid for path in found.values()} == {os.geteuid()}


def test_all_uploads_of_a_spec_share_one_layer_and_later_ones_win(tmp_path: Path, root: Path) -> None:
    """One layer above the root holds every upload; the same target twice keeps the later file."""
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_text("first")
    second.write_text("second")
    made = prepare(tmp_path, root, (first, "/data/x"), (first, "/workspace/y"), (second, "/data/x"))
    assert len(made.lowers) == 2
    assert (made.lowers[0] / "data/x").read_text() == "second"
    assert (made.lowers[0] / "workspace/y").read_text() == "first"


def test_a_target_behind_a_link_of_the_image_lands_where_it_leads(tmp_path: Path, root: Path) -> None:
    """Uploading to /bin/tool of a merged image puts it into /usr/bin, and the link stays in sight."""
    (tmp_path / "tool").write_text("tool")
    layer = prepare(tmp_path, root, (tmp_path / "tool", "/bin/tool")).lowers[0]
    assert (layer / "usr/bin/tool").read_text() == "tool"
    assert not (layer / "bin").exists()


def test_a_folder_that_would_replace_a_link_of_the_image_is_refused(tmp_path: Path, root: Path) -> None:
    """An upload to / with its own bin/ would hide the image's programs."""
    (tmp_path / "tree/bin").mkdir(parents=True)
    with pytest.raises(UsageError, match="replaces /bin"):
        prepare(tmp_path, root, (tmp_path / "tree", "/"))


@pytest.mark.parametrize("target", [
    "relative", "", "../x", "/workspace/../etc/x", "/a\0b", "/proc/x", "/dev/null", "/sys", "/tmp/x", "/run/x",
    "/usr", "/usr/bin/x", "/bin/x", "//usr//x", "/./usr/x",
])
def test_bad_targets_are_refused_by_field(tmp_path: Path, root: Path, target: str) -> None:
    """A target that is not absolute and plain, or lies under a mount, is named with its field."""
    (tmp_path / "f").write_text("")
    upload = Upload(source=tmp_path / "f", target=target)
    with pytest.raises(UsageError, match=r"uploads\[0\]\.target"):
        plan_uploads([upload], (root,), (Bind(Path("/usr"), "/usr"),))


def test_a_folder_that_reaches_under_a_mount_is_refused(tmp_path: Path, root: Path) -> None:
    """A folder uploaded to / with usr/ in it cannot cover the bind of /usr."""
    (tmp_path / "tree/usr").mkdir(parents=True)
    with pytest.raises(UsageError, match="covers /usr"):
        plan_uploads([Upload(source=tmp_path / "tree", target="/")], (root,), (Bind(Path("/usr"), "/usr"),))


def test_special_files_missing_sources_and_history_itself_are_refused(tmp_path: Path, root: Path) -> None:
    """A FIFO, a socket's like, a missing path and a ``.git`` folder are named with their path."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "deep").mkdir()
    os.mkfifo(tmp_path / "deep/fifo")
    (tmp_path / ".git").mkdir()
    for name, why in {"fifo": "device, FIFO", "deep": "device, FIFO", "none": "cannot be uploaded",
                      ".git": "history"}.items():
        with pytest.raises(UsageError, match=why) as caught:
            prepare(tmp_path, root, (tmp_path / name, "/workspace/x"))
        assert str(tmp_path / name) in str(caught.value)


FULL = """
import resource, sys
from pathlib import Path
from woodshed.errors import EnvironmentFault
from woodshed.model import EnvironmentSpec, Upload
from woodshed.sandbox.images import Images
images = Images(Path(sys.argv[1]))
spec = EnvironmentSpec(image=f"dir:{sys.argv[2]}", uploads=(Upload(source=Path(sys.argv[3]), target="/data"),))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    images.prepare(spec)
except EnvironmentFault as fault:
    print(f"fault {fault.retryable}: {fault}")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(images.prepare(spec).lowers[0].joinpath("data").stat().st_size)
"""


def test_a_layer_that_does_not_fit_on_the_disk_is_the_environments_fault(tmp_path: Path, root: Path) -> None:
    """A write that fails leaves no layer and can be tried again when there is room."""
    (tmp_path / "big").write_bytes(bytes(5000))
    command = [sys.executable, "-c", FULL, str(tmp_path / "home"), str(root), str(tmp_path / "big")]
    fault, size = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    assert fault.startswith("fault True: preparing the image dir:")
    assert size == "5000"
    assert not list((tmp_path / "home/layers/.tmp").iterdir())


def test_a_file_and_a_folder_cannot_share_a_target(tmp_path: Path, root: Path) -> None:
    """Neither replaces the other."""
    (tmp_path / "f").write_text("")
    (tmp_path / "d").mkdir()
    for pair in (("f", "d"), ("d", "f")):
        with pytest.raises(UsageError, match="cannot replace"):
            prepare(tmp_path, root, *((tmp_path / name, "/data/x") for name in pair))


def test_changed_content_gives_another_layer_and_equal_content_the_same(tmp_path: Path, root: Path) -> None:
    """The layer is named by content alone: a touched or copied source gives the same one, a changed source another."""
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        path.mkdir()
        (path / "f").write_text("same")
    os.utime(two / "f", (5, 5))
    first = prepare(tmp_path, root, (one, "/workspace"))
    assert prepare(tmp_path, root, (two, "/workspace")) == first
    (two / "f").write_text("diff")
    assert prepare(tmp_path, root, (two, "/workspace")).digest != first.digest
    (one / "f").chmod(0o755)
    assert prepare(tmp_path, root, (one, "/workspace")).digest != first.digest
