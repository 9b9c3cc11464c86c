"""A watched folder: files fire when they are whole, and nothing outside the folder is ever read."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from woodshed.engine import watch
from woodshed.engine.watch import Watch, existing, parse, read, walk
from woodshed.errors import UsageError
from woodshed.model.schedule import Files


@dataclass
class Clock:
    """Seconds that pass when they are told to."""

    at: float = 0.0

    def __call__(self) -> float:
        return self.at


@dataclass
class Watched:
    """A folder, watched, with a clock of its own."""

    folder: Path
    pattern: str = "*"
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.files = Files(folder=str(self.folder), pattern=self.pattern, settle_s=2)
        self.watch = Watch(self.files, self.clock)

    def after(self, seconds: float) -> list[str]:
        """What fires so much later; it is taken."""
        self.clock.at += seconds
        traces = self.watch.look()
        self.watch.took(traces)
        return [trace.path for trace in traces]


def matching(folder: Path, pattern: str) -> list[str]:
    return sorted(path for path, _ in walk(Files(folder=str(folder), pattern=pattern)))


def test_a_file_fires_once_it_is_still(tmp_path: Path) -> None:
    """Not while it grows, then once; again when it changes, and never when it goes."""
    seen, file = Watched(tmp_path), tmp_path / "a"
    file.write_text("half")
    assert seen.after(0) == seen.after(1) == []
    file.write_text("half, and the rest")
    assert seen.after(1) == seen.after(1) == []
    assert seen.after(1) == ["a"]
    assert seen.after(9) == []
    file.write_text("more")
    assert seen.after(0) == []
    assert seen.after(2) == ["a"]
    file.unlink()
    assert seen.after(9) == []


def test_what_fires_is_named_with_its_digest(tmp_path: Path) -> None:
    """Path below the folder, SHA-256 and size; names that are not UTF-8 included."""
    name = os.fsdecode(b"odd-\xff")
    (tmp_path / name).write_bytes(b"content")
    [trace] = existing(Files(folder=str(tmp_path), pattern="*"))
    assert (trace.path, trace.sha256, trace.size_bytes) == (name, hashlib.sha256(b"content").hexdigest(), 7)


def test_a_flood_is_one_batch_but_not_for_ever(tmp_path: Path) -> None:
    """Files that come one after another fire together; where they never stop, after ten times the settling."""
    seen, batches = Watched(tmp_path), list[list[str]]()
    for number in range(40):
        (tmp_path / f"{number:02}").write_text(str(number))
        batches.append(seen.after(1))
    batches += [seen.after(1), seen.after(1)]
    sizes = [len(batch) for batch in batches if batch]
    assert sum(sizes) == 40
    assert len(sizes) == 2
    assert sorted(name for batch in batches for name in batch) == [f"{number:02}" for number in range(40)]


def test_a_large_flood_is_several_firings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A firing names so many files at most; the next one has the rest."""
    monkeypatch.setattr(watch, "MOST_NAMED", 3)
    for number in range(5):
        (tmp_path / str(number)).write_text(str(number))
    seen = Watched(tmp_path)
    assert seen.after(0) == []
    assert seen.after(2) == ["0", "1", "2"]
    assert seen.after(1) == ["3", "4"]


def test_patterns_mean_what_they_do_in_a_shell(tmp_path: Path) -> None:
    """``*`` stays within a folder, ``**`` is any number of them, and dots are matched by dots alone."""
    for name in ("a.json", "b.txt", ".half.json", "sub/c.json", "sub/deep/d.json", ".git/e.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert matching(tmp_path, "*") == ["a.json", "b.txt"]
    assert matching(tmp_path, "*.json") == ["a.json"]
    assert matching(tmp_path, "*/*.json") == ["sub/c.json"]
    assert matching(tmp_path, "**/*.json") == ["a.json", "sub/c.json", "sub/deep/d.json"]
    assert matching(tmp_path, "sub/**") == ["sub/c.json", "sub/deep/d.json"]
    assert matching(tmp_path, ".half.*") == [".half.json"]
    assert (parse(str(tmp_path), 1).pattern, parse(f"{tmp_path}/sub/**/*.j?on", 1).folder) == ("*", f"{tmp_path}/sub")


@pytest.mark.parametrize("bad", ["{0}/none/*.json", "{0}/*/../../*", "", "/"])
def test_a_glob_that_names_no_folder_is_refused(bad: str, tmp_path: Path) -> None:
    """The message names what was taken for the folder; a pattern leads nowhere above it."""
    if bad == "/":
        assert parse(bad, 1).folder == "/"
        return
    if bad == "":
        assert parse(bad, 1).folder == str(Path.cwd())
        return
    with pytest.raises(UsageError, match=r"files: .* is no folder to watch"):
        parse(bad.format(tmp_path), 1)


def test_links_devices_and_queues_are_not_followed(tmp_path: Path) -> None:
    """Neither a link to a file nor to a folder, a FIFO or a socket is read; with the real file in its place it is."""
    outside, folder = tmp_path / "outside", tmp_path / "in"
    for place in (outside, folder):
        place.mkdir()
    (outside / "secret").write_text("secret")
    (folder / "link").symlink_to(outside / "secret")
    (folder / "sub").symlink_to(outside)
    os.mkfifo(folder / "queue")
    assert existing(Files(folder=str(folder), pattern="**/*")) == []
    (folder / "sub").unlink()
    (folder / "sub").mkdir()
    (folder / "sub" / "secret").write_text("secret")
    assert [trace.path for trace in existing(Files(folder=str(folder), pattern="**/*"))] == ["sub/secret"]


@pytest.mark.parametrize("part", ["file", "folder"])
def test_a_link_put_in_place_after_the_look_is_not_followed(part: str, tmp_path: Path) -> None:
    """Whoever owns the folder may swap a file or a folder for a link between looking and reading: nothing is read."""
    files = Files(folder=str(tmp_path / "in"), pattern="**/*")
    for place in ("in/sub", "outside"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "name").write_text("secret")
    [(path, stamp)] = walk(files)
    assert read(files, path, stamp) is not None
    if part == "file":
        (tmp_path / "in/sub/name").unlink()
        (tmp_path / "in/sub/name").symlink_to(tmp_path / "outside/name")
    else:
        (tmp_path / "in/sub").rename(tmp_path / "moved")
        (tmp_path / "in/sub").symlink_to(tmp_path / "moved")  # the very same file, by another road
    assert read(files, path, stamp) is None


def test_a_hostile_tree_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders nested without end are looked into so far; too many entries or matches are refused with a remedy."""
    here = tmp_path
    for _ in range(watch.MOST_DEPTH + 20):
        here = here / "d"
    here.mkdir(parents=True)
    (here / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    assert matching(tmp_path, "**/*") == ["b"]
    for name, what in (("MOST_FILES", "files match"), ("MOST_SEEN", "files and folders")):
        with monkeypatch.context() as patch:
            patch.setattr(watch, name, 0)
            with pytest.raises(UsageError, match=rf"more than 0 {what}.*narrower"):
                matching(tmp_path, "**/*")


def test_a_huge_file_is_told_of_and_never_read(tmp_path: Path) -> None:
    """It costs nothing on disk to claim a size that takes hours to read."""
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(watch.MOST_BYTES + 1)
    (tmp_path / "small").write_text("small")
    seen = Watched(tmp_path)
    assert seen.after(0) == []
    assert seen.after(2) == ["small"]
    assert seen.watch.too_large() == ["huge"]


def test_reading_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """A look that is not to go on reads no further, and the next one does."""
    (tmp_path / "a").write_text("a")
    seen, going = Watched(tmp_path), [False]
    seen.watch.going = lambda: going[0]
    assert seen.after(0) == seen.after(5) == []
    going[0] = True
    assert seen.after(1) == ["a"]


def test_a_look_reads_for_a_while_only(tmp_path: Path) -> None:
    """Where reading takes long the look ends, with what it has for later; nothing is read twice for it."""
    for number in range(6):
        (tmp_path / str(number)).write_text(str(number))
    seen = Watched(tmp_path)

    def slow() -> bool:
        seen.clock.at += 0.6  # twice a file: before it, and while it is read
        return True

    seen.watch.going = slow
    looks = [seen.after(2) for _ in range(6)]
    assert [name for look in looks for name in look] == [str(number) for number in range(6)]
    assert looks[1] == []  # some are read, and wait for the others


@pytest.mark.parametrize("how", ["gone", "a file", "a link"])
def test_a_folder_that_is_none_any_more_is_an_error(how: str, tmp_path: Path) -> None:
    """The watched folder itself may go, or be swapped: the message names it."""
    folder = tmp_path / "in"
    folder.mkdir()
    seen = Watched(folder)
    assert seen.after(0) == []
    folder.rmdir()
    swap: dict[str, Callable[[], object]] = {
        "gone": lambda: None, "a file": folder.touch, "a link": lambda: folder.symlink_to(tmp_path)}
    swap[how]()
    with pytest.raises(UsageError, match=rf"{folder}: cannot be watched"):
        seen.after(1)


def test_a_file_that_may_not_be_read_holds_up_no_other(tmp_path: Path) -> None:
    """What vanished or is closed to us is passed over; others fire in time."""
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    seen = Watched(tmp_path)
    assert seen.after(0) == []
    stamps = dict(walk(seen.files))
    os.utime(tmp_path / "b", ns=(time.time_ns(), stamps["b"].modified_ns))  # changes what is seen, not when it was
    assert read(seen.files, "b", stamps["b"]) is None
    assert seen.after(2) == []  # 'b' was just seen to change
    assert seen.after(2) == ["a", "b"]
