"""USER of an image: who commands are, with which groups, home and working folder."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import ocikit as oci
from ocikit import E
from woodshed.errors import ImageFault, Unsupported, UsageError
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.images.account import Account, find, of_layers, owner
from woodshed.sandbox.images.view import View
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.ids import privileged

PASSWD = ("root:x:0:0:root:/root:/bin/sh\napp:x:1000:100:App:/home/app:/bin/sh\n4242:x:5:5::/five:/bin/sh\n"
          "broken:x:1\nlettered:x:ten:ten:::\ntoo:x:70000:0:::\nnul\0:x:7:7:::\n")
GROUPS = "root:x:0:\nusers:x:100:\nstaff:x:50:other,app\ndocker:x:60:app\nempty:x:61:\n"
APP = {"User": "app", "Env": ["PATH=/bin", "KEPT=image"], "WorkingDir": "/srv/app",
       "Entrypoint": ["/bin/sh", "-c", "echo ran > /entry; exec \"$@\"", "--"], "Cmd": ["false"]}
WHO = "id -u; id -g; id -G; echo $HOME $USER; pwd"


@pytest.mark.parametrize(("user", "account"), [
    ("", Account(0, 0, (), "root", "/root")),
    ("root", Account(0, 0, (), "root", "/root")),
    ("app", Account(1000, 100, (50, 60), "app", "/home/app")),
    ("1000", Account(1000, 100, (50, 60), "app", "/home/app")),
    ("app:staff", Account(1000, 50, (), "app", "/home/app")),
    ("app:7", Account(1000, 7, (), "app", "/home/app")),
    ("7:staff", Account(7, 50, (), "", "/")),
    ("7", Account(7, 0, (), "", "/")),
    ("4242", Account(4242, 0, (), "", "/")),
    (":users", Account(0, 100, (), "root", "/root")),
])
def test_who_a_user_is(user: str, account: Account) -> None:
    """Numbers, primary and supplementary groups and home are the image's; a number is never a name."""
    assert find(user, PASSWD, GROUPS) == account


@pytest.mark.parametrize("user", [
    "nobody-here", "app:nope", "broken", "lettered", "nul", "too", "70000", "99999999999999999999", "7:70000", "-1",
])
def test_who_nobody_is(user: str) -> None:
    """Names that the files do not hold whole, and numbers that no sandbox has, are refused."""
    with pytest.raises(UsageError):
        find(user, PASSWD, GROUPS)


def test_owners_of_copies() -> None:
    """For --chown a number is its own group's, a name has its primary one, and nothing is root."""
    assert [owner(text, PASSWD, GROUPS) for text in ("", "7", "1000", "app", "app:7", "7:staff")] == [
        (0, 0), (7, 7), (1000, 1000), (1000, 100), (1000, 7), (7, 50)]


def test_files_that_lead_elsewhere(tmp_path: Path) -> None:
    """An /etc/passwd that is a link or fifo, or below a link out of the image, is never the host's."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/passwd").write_text("evil:x:666:666::/:/bin/sh\n")
    layers = {name: tmp_path / name for name in ("absolute", "folder", "climbing", "fifo", "circle")}
    for name, layer in layers.items():
        (layer if name == "folder" else layer / "etc").mkdir(parents=True)
    (layers["absolute"] / "etc/passwd").symlink_to(tmp_path / "outside/passwd")
    (layers["folder"] / "etc").symlink_to(tmp_path / "outside")
    (layers["climbing"] / "etc/passwd").symlink_to("../../../outside/passwd")
    os.mkfifo(layers["fifo"] / "etc/passwd")
    (layers["circle"] / "etc/passwd").symlink_to("passwd")
    for layer in layers.values():
        with pytest.raises(UsageError):
            of_layers("evil", View([layer]))
    inside = tmp_path / "inside"  # the control: a link that stays within the image is followed
    (inside / "etc").mkdir(parents=True)
    (inside / "etc/passwd").symlink_to("/usr/lib/passwd")
    (inside / "usr/lib").mkdir(parents=True)
    (inside / "usr/lib/passwd").write_text("evil:x:666:666::/:/bin/sh\n")
    assert of_layers("evil", View([inside])).uid == 666


def test_a_file_without_end(tmp_path: Path) -> None:
    """Of a huge /etc/passwd only the beginning is read."""
    (tmp_path / "etc").mkdir()
    with (tmp_path / "etc/passwd").open("w") as file:
        file.write("app:x:1000:1000::/:\n")
        file.seek(1 << 40)
        file.write("late:x:7:7::/:\n")
    assert of_layers("app", View([tmp_path])).uid == 1000
    with pytest.raises(UsageError):
        of_layers("late", View([tmp_path]))


# -- in sandboxes ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[NativeEngine]:
    made = NativeEngine(tmp_path / "home")
    yield made
    await made.close()


@pytest.fixture
def image(tmp_path: Path) -> str:
    if not oci.has_busybox():
        pytest.skip(oci.NO_BUSYBOX)
    files = oci.layer(E("etc/passwd", content=PASSWD.encode()), E("etc/group", content=GROUPS.encode()),
                      E("home/app", "dir", mode=0o755, uid=1000, gid=100))
    return oci.layout(tmp_path / "l", oci.busybox_layer(), files, inner=APP)


async def said(engine: NativeEngine, spec: EnvironmentSpec, command: str, user: int | None = None) -> list[str]:
    box = await engine.create(spec, SandboxPolicy())
    try:
        done = await box.exec(command, user=user)
        return (done.stdout + done.stderr).decode().split()
    finally:
        await box.close()


needs_users = pytest.mark.skipif(not privileged(), reason="needs root: an ordinary user's sandbox has one user")


@needs_users
async def test_commands_run_as_the_user_of_the_image(engine: NativeEngine, image: str) -> None:
    """USER, its groups and home, ENV and WORKDIR hold in exec, start, sessions and terminals; setup is root's."""
    spec = EnvironmentSpec(image=image, workdir="", setup="id -u > /setup; chown app /setup")
    expected = ["1000", "100", "100", "50", "60", "/home/app", "app", "/srv/app"]
    assert await said(engine, spec, WHO) == expected
    assert await said(engine, spec, "cat /setup; echo $KEPT; touch ~/own && stat -c %u:%g ~/own") == [
        "0", "image", "1000:100"]
    box = await engine.create(spec, SandboxPolicy())
    try:
        process = await box.start("id -G > ~/groups")
        assert await process.wait() == 0
        assert await box.read("/home/app/groups") == b"100 50 60\n"
        terminal = await box.pty(["sh", "-c", "id -u > ~/terminal"])
        assert await terminal.process.wait() == 0
        await terminal.close()
        assert await box.read("/home/app/terminal") == b"1000\n"
        status = (await box.exec("grep ^Cap /proc/self/status")).stdout.split()
        assert set(status[1::2]) == {b"0" * 16}
    finally:
        await box.close()


@needs_users
async def test_root_is_asked_for_by_number(engine: NativeEngine, image: str) -> None:
    """A command for user 0 is root with root's home, and a task's own user wins over the image's."""
    spec = EnvironmentSpec(image=image, workdir="/w")
    assert await said(engine, spec, WHO, user=0) == ["0", "0", "0", "/root", "root", "/w"]
    asked = spec.model_copy(update={"user": "7:staff"})
    assert (await said(engine, asked, WHO))[:4] == ["7", "50", "50", "/"]


@needs_users
async def test_a_group_of_root(engine: NativeEngine, image: str) -> None:
    """USER root:GROUP is root in that group."""
    assert (await said(engine, EnvironmentSpec(image=image, user="root:staff"), "id -u; id -g")) == ["0", "50"]


async def test_the_entry_point_never_runs(engine: NativeEngine, image: str) -> None:
    """ENTRYPOINT and CMD are kept, and no sandbox starts them."""
    spec = EnvironmentSpec(image=image, user="root")
    assert await said(engine, spec, "test -e /entry || echo never ran") == ["never", "ran"]
    assert "ran" in await said(engine, spec, "sh -c 'echo ran > /entry'; cat /entry")  # the control: it could have


async def test_the_working_folder_is_the_images_unless_the_task_says(engine: NativeEngine, image: str) -> None:
    """Without a workdir the image's WORKDIR counts; the task's wins."""
    for workdir, expected in (("", "/srv/app"), ("/else", "/else")):
        assert await said(engine, EnvironmentSpec(image=image, workdir=workdir, user="root"), "pwd") == [expected]


async def test_a_user_nobody_is(engine: NativeEngine, tmp_path: Path) -> None:
    """An image whose USER it does not have makes no sandbox, and the fault is the image's."""
    if not oci.has_busybox():
        pytest.skip(oci.NO_BUSYBOX)
    image = oci.layout(tmp_path / "l", oci.busybox_layer(), inner={"User": "ghost"})
    with pytest.raises(ImageFault, match="USER ghost: the image has no user"):
        await engine.create(EnvironmentSpec(image=image), SandboxPolicy())


@pytest.mark.skipif(privileged(), reason="root has the users: run the suite as an ordinary user")
async def test_an_ordinary_user_is_told(engine: NativeEngine, image: str) -> None:
    """Where a sandbox has root alone, USER is refused by name, and the task may say root."""
    with pytest.raises(Unsupported, match="users: commands are to run as app"):
        await engine.create(EnvironmentSpec(image=image), SandboxPolicy())
    assert await said(engine, EnvironmentSpec(image=image, user="root"), "id -u") == ["0"]


async def test_a_closed_engine_lets_layers_be_collected(tmp_path: Path, image: str) -> None:
    """An engine closes the images it made: garbage is collected afterwards in the same process."""
    from woodshed.services.images import collect

    engine = NativeEngine(tmp_path / "home")
    assert await said(engine, EnvironmentSpec(image=image, user="root"), "echo up") == ["up"]
    assert collect(tmp_path / "home", 0).busy  # the control: as long as it is open
    await engine.close()
    done = collect(tmp_path / "home", 0)
    assert (done.busy, done.layers >= 1) == (False, True)
