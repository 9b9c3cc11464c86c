"""The ``dir:PATH`` image, and what Images promises whatever the image."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from woodshed.errors import Unsupported, UsageError
from woodshed.model import EnvironmentSpec
from woodshed.sandbox.images import Images, Rootfs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The least that counts as a root: a shell, behind links as in a merged /usr."""
    path = tmp_path / "root"
    (path / "usr/bin").mkdir(parents=True)
    (path / "usr/bin/dash").write_text("#!")
    (path / "usr/bin/sh").symlink_to("dash")
    (path / "bin").symlink_to("/usr/bin")
    return path


def prepare(tmp_path: Path, image: str, *requirements: str) -> Rootfs:
    images = Images(tmp_path / "home")
    try:
        return images.prepare(EnvironmentSpec(image=image, requirements=requirements))
    finally:
        images.close()


def test_an_unpacked_root_is_the_lowest_layer_as_it_is(tmp_path: Path, root: Path) -> None:
    """The directory is used in place, with a layer of the mount points it lacks; links in it are followed inside it."""
    made = prepare(tmp_path, f"dir:{root}")
    assert made.lowers[-1] == root
    assert {path.name for path in made.lowers[0].iterdir()} == {"dev", "proc", "root", "tmp"}
    assert made.binds == ()
    assert made.shell == "/bin/sh"
    assert not made.env["PATH"].startswith("/opt/venv")
    assert sorted(path.name for path in root.iterdir()) == ["bin", "usr"]


def test_a_complete_root_needs_no_layer_of_ours(tmp_path: Path, root: Path) -> None:
    """Where nothing is missing, the directory is the only layer; bash is preferred where it is."""
    for name in ("dev", "proc", "root", "tmp"):
        (root / name).mkdir()
    (root / "usr/bin/bash").write_text("#!")
    made = prepare(tmp_path, f"dir:{root}")
    assert made.lowers == (root,)
    assert made.shell == "/bin/bash"


def test_the_digest_follows_the_listing(tmp_path: Path, root: Path) -> None:
    """The same directory gives the same digest, another file or time another one."""
    first = prepare(tmp_path, f"dir:{root}").digest
    assert first.startswith("sha256:")
    assert prepare(tmp_path, f"dir:{root}").digest == first
    os.utime(root / "usr/bin/dash", (5, 5))
    second = prepare(tmp_path, f"dir:{root}").digest
    (root / "usr/new").write_text("")
    assert len({first, second, prepare(tmp_path, f"dir:{root}").digest}) == 3


@pytest.mark.parametrize(("image", "why"), [
    ("dir:/nowhere/at/all", "not a directory"), ("dir:", "not a directory"), ("dir:/", "own state"),
    ("dir:{root}/..", "own state"), ("dir:{root}/usr/bin", "no /bin/sh"),
    ("dir:{root}/usr/bin/dash", "not a directory"), ("file:x", "is no image"), ("Not Good", "no name"), ("", "no name"),
])
def test_images_that_cannot_be_are_refused_by_field(tmp_path: Path, root: Path, image: str, why: str) -> None:
    """A missing root, one that holds our own state, one without a shell, an unknown kind: named, with a remedy."""
    with pytest.raises(UsageError, match=why) as caught:
        prepare(tmp_path, image.format(root=root))
    assert caught.value.field == "image"
    assert caught.value.remedy


def test_a_shell_that_leads_out_of_the_root_is_none(tmp_path: Path, root: Path) -> None:
    """A link to the host's shell is looked for inside the root, and not found."""
    (root / "usr/bin/sh").unlink()
    (root / "usr/bin/sh").symlink_to("../../../../../../../../bin/sh")
    with pytest.raises(UsageError, match=r"circle|no /bin/sh"):
        prepare(tmp_path, f"dir:{root}")


def test_requirements_of_a_directory_are_unsupported_by_name(tmp_path: Path, root: Path) -> None:
    """We do not know the Python of an unpacked root."""
    with pytest.raises(Unsupported, match="requirements"):
        prepare(tmp_path, f"dir:{root}", "attrs")


def test_preparing_again_is_a_lookup_and_threads_share_it(tmp_path: Path, root: Path) -> None:
    """Equal specs give the very same object, also to threads that ask at once."""
    images = Images(tmp_path / "home")
    found: list[Rootfs] = []
    threads = [threading.Thread(target=lambda: found.append(images.prepare(EnvironmentSpec(image=f"dir:{root}"))))
               for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(made) for made in found}) == 1
    images.close()


def test_a_spec_that_failed_is_tried_again(tmp_path: Path, root: Path) -> None:
    """A failure is not remembered: the remedy helps without a restart."""
    images, sh = Images(tmp_path / "home"), root / "usr/bin/sh"
    sh.unlink()
    with pytest.raises(UsageError):
        images.prepare(EnvironmentSpec(image=f"dir:{root}"))
    sh.symlink_to("dash")
    assert images.prepare(EnvironmentSpec(image=f"dir:{root}")).shell == "/bin/sh"
    images.close()
