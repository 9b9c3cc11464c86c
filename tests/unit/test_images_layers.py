"""The layer store: made once by whoever comes first, nothing left of a writer that dies."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from woodshed.errors import EnvironmentFault
from woodshed.sandbox.images.layers import Layers

MAKER = """
import sys, time
from pathlib import Path
from woodshed.sandbox.images.layers import Layers
home, log = Path(sys.argv[1]), Path(sys.argv[2])
def fill(layer):
    with log.open("a") as file: file.write("filled\\n")
    time.sleep(0.2)
    (layer / "file").write_text("content")
print(Layers(home).make("same", fill))
"""
STUCK = """
import sys, time
from pathlib import Path
from woodshed.sandbox.images.layers import Layers
def fill(layer):
    (layer / "half").mkdir()
    (layer / "half/file").write_text("half")
    import os
    os.chdir(layer)
    for _ in range(3000):
        os.mkdir("deep")
        os.chdir("deep")
    os.chdir("/")
    (layer / "link").symlink_to(sys.argv[2])
    for path in (layer / "half", layer, layer.parent):
        path.chmod(0)
    print("writing", flush=True)
    time.sleep(600)
Layers(Path(sys.argv[1])).make("stuck", fill)
"""


def scratch(layers: Layers) -> list[Path]:
    return list((layers.root / ".tmp").iterdir())


def test_a_layer_is_filled_once_by_threads_that_ask_together(tmp_path: Path) -> None:
    """Threads that ask at once get one layer, filled once."""
    layers, fills = Layers(tmp_path), []

    def fill(layer: Path) -> None:
        fills.append(layer)
        time.sleep(0.05)

    threads = [threading.Thread(target=layers.make, args=("one", fill)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fills) == 1
    assert layers.find("one") == layers.path("one")
    assert not scratch(layers)


def test_a_layer_is_filled_once_by_processes_that_ask_together(tmp_path: Path) -> None:
    """Processes that ask at once get one layer, filled once."""
    command = [sys.executable, "-c", MAKER, str(tmp_path / "home"), str(tmp_path / "log")]
    makers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    answers = {maker.communicate()[0] for maker in makers}
    assert len(answers) == 1
    assert (tmp_path / "log").read_text() == "filled\n"


def test_what_a_killed_writer_left_is_swept_and_a_live_one_is_not(tmp_path: Path) -> None:
    """A scratch directory stays as long as its writer lives, whoever opens the store, and goes after its death."""
    host = tmp_path / "host"
    host.mkdir(mode=0o500)
    writer = subprocess.Popen([sys.executable, "-c", STUCK, str(tmp_path), str(host)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == b"writing\n"
        layers = Layers(tmp_path)
        assert len(scratch(layers)) == 2
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    assert layers.sweep() == 1
    assert not scratch(layers)
    assert layers.find("stuck") is None
    assert stat.S_IMODE(host.stat().st_mode) == 0o500  # a link in it was not followed
    assert layers.make("stuck", lambda layer: None).is_dir()


def test_a_failed_fill_leaves_nothing_and_can_be_tried_again(tmp_path: Path) -> None:
    """What ``fill`` raises passes, and the next try starts afresh."""
    layers = Layers(tmp_path)

    def broken(layer: Path) -> None:
        (layer / "x").write_text("x")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        layers.make("it", broken)
    assert not scratch(layers)
    assert list(layers.make("it", lambda layer: None).iterdir()) == []


def test_a_layer_gets_the_name_of_what_was_really_written(tmp_path: Path) -> None:
    """Where the source changed while it was read, the layer is named by its true content, and found there again."""
    layers = Layers(tmp_path)
    assert layers.make("asked", lambda layer: "true").name == "true"
    assert layers.make("asked", lambda layer: "true").name == "true"
    assert layers.find("asked") is None


def test_nobody_else_reaches_what_the_layers_hold(tmp_path: Path) -> None:
    """The home is made private, the layers' folder is private even in a home that is not, layers are readable."""
    layers = Layers(tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    open_home = tmp_path / "open"
    open_home.mkdir(mode=0o755)
    old_mask = os.umask(0o077)
    try:
        layers = Layers(open_home)
        layer = layers.make("x", lambda layer: None)
    finally:
        os.umask(old_mask)
    assert stat.S_IMODE(layers.root.stat().st_mode) == 0o700
    assert stat.S_IMODE(layer.stat().st_mode) == 0o755


def test_a_home_that_cannot_be_used_is_an_environment_fault(tmp_path: Path) -> None:
    """A file in the place of the home is named."""
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot be used"):
        Layers(tmp_path / "file")


def test_garbage_is_what_was_not_used_for_long_and_only_while_nobody_else_lives(tmp_path: Path) -> None:
    """Old layers go, used ones stay; while another process has the store open, nothing goes."""
    layers = Layers(tmp_path)

    def four(layer: Path) -> None:
        (layer / "f").write_text("1234")

    for name in ("old", "new"):
        layers.make(name, four)
    assert layers.sizes() == {"old": 4, "new": 4}
    os.utime(layers.root / ".used" / "old", (1, 1))
    other = Layers(tmp_path)
    assert layers.gc(3600) == []
    other.close()
    assert layers.gc(3600) == ["old"]
    assert set(layers.sizes()) == {"new"}
    assert not scratch(layers)


def test_a_damaged_note_is_no_note(tmp_path: Path) -> None:
    """Notes come back as they were; one that is not JSON counts as missing."""
    layers = Layers(tmp_path)
    assert layers.note("n") is None
    layers.set_note("n", ["a"])
    assert Layers(tmp_path).note("n") == ["a"]
    (layers.root / ".notes" / "n.json").write_text("{")
    assert layers.note("n") is None


def test_a_layer_is_measured_once(tmp_path: Path) -> None:
    """Its size is known without another look at its files, and forgotten with it."""
    layers = Layers(tmp_path)

    def fill(layer: Path) -> None:
        (layer / "file").write_bytes(b"x" * 1000)

    path = layers.make("one", fill)
    assert (layers.size("one"), layers.sizes(), layers.size("none")) == (1000, {"one": 1000}, 0)
    (path / "file").unlink()  # nobody does that: it shows that the files are not asked
    assert layers.size("one") == 1000
    assert layers.gc(0) == ["one"]
    assert layers.note("size-one") is None
    layers.close()
