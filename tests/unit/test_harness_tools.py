"""The tools, on real files: what they do, and what they say when it cannot be done."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from localbox import LocalBox
from scripted import a_task
from woodshed.errors import UsageError
from woodshed.harness.kit import Kit
from woodshed.harness.tools import ALL_TOOLS, DEFAULT_TOOLS, NAMES, chosen, name_of
from woodshed.harness.tools.diff import original
from woodshed.harness.tools.output import shown as as_shown
from woodshed.interfaces import ExecResult, ToolResult
from woodshed.model import EnvironmentSpec, Observation, Task, ToolCall, Upload


class Bench:
    """A directory as a sandbox, and the tools bound to a task."""

    def __init__(self, folder: Path, task: Task | None = None) -> None:
        self.box = LocalBox(folder / "box")
        self.files = folder / "box" / "workspace"
        self.kit = Kit(task or a_task(folder))
        self.tools = {tool.spec.name: tool for tool in (maker(self.kit) for maker in ALL_TOOLS)}

    async def use(self, name: str, **arguments: Any) -> ToolResult:
        return await self.tools[name].run(self.box, arguments, timeout_s=30)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_default_tools_are_nine_and_the_rest_come_in_sets(bench: Bench) -> None:
    """Names and schemas: every tool declares an object, and describes itself."""
    default = {"bash", "read_file", "write_file", "edit_file", "search", "diff", "run_tests", "read_output", "finish"}
    assert {name_of(maker) for maker in DEFAULT_TOOLS} == default
    assert set(bench.tools) == NAMES == default | {
        "shell", "start_job", "read_job", "wait_job", "kill_job", "plan", "delegate"}
    for tool in bench.tools.values():
        assert tool.spec.parameters["type"] == "object"
        assert set(tool.spec.parameters.get("required", ())) <= set(tool.spec.parameters["properties"])
        assert tool.spec.description.endswith(".")


async def test_bash_shows_both_streams_and_the_code(bench: Bench) -> None:
    """stdout comes first, stderr after it on lines of its own."""
    result = await bench.use("bash", command="echo err >&2; printf out; exit 9")
    assert (result.content, result.exit_code) == ("out\nerr", 9)


def test_a_limit_that_was_reached_is_said() -> None:
    """The model reads which limit its command ran into; output that was cut shows that by itself."""
    result = ExecResult(137, b"half done\n", b"", limits_hit=("disk_mb", "output_bytes"))
    assert as_shown(result).content == "half done\n[limit reached: disk_mb]"


async def test_read_file_in_whole_and_in_parts(bench: Bench) -> None:
    """A short file is shown as it stands, a part of it with its place, a long one in pieces of 400 lines."""
    bench.box.begin({"a": "one\ntwo\nthree\n", "long": "x\n" * 1000, "empty": "", "bin": b"a\0b"})
    assert (await bench.use("read_file", path="a")).content == "one\ntwo\nthree\n"
    assert (await bench.use("read_file", path="/workspace/a", start=2, lines=1)).content == "[lines 2 to 2 of 3]\ntwo\n"
    long = await bench.use("read_file", path="long")
    assert long.content.startswith("[lines 1 to 400 of 1000]")
    assert long.truncated
    assert (await bench.use("read_file", path="a", start=9)).content == "/workspace/a has 3 lines; there is no line 9."
    assert (await bench.use("read_file", path="empty")).content == "[the file is empty]"
    assert "binary file of 3 bytes" in (await bench.use("read_file", path="bin")).content


async def test_reading_what_is_not_there_helps(bench: Bench) -> None:
    """A near name is offered, a folder is called one, a missing folder is named."""
    bench.box.begin({"src/config.py": ""})
    assert "Did you mean 'config.py'?" in (await bench.use("read_file", path="src/confg.py")).content
    assert (await bench.use("read_file", path="src")).content == "/workspace/src is a folder."
    assert "/workspace/lib does not exist" in (await bench.use("read_file", path="lib/a.py")).content


async def test_write_file_makes_folders_and_keeps_the_mode(bench: Bench) -> None:
    """Parents are made; a script that was executable stays so."""
    bench.box.begin({"run.sh": "old"})
    (bench.files / "run.sh").chmod(0o755)
    await bench.use("write_file", path="run.sh", content="new")
    assert stat.S_IMODE((bench.files / "run.sh").stat().st_mode) == 0o755
    written = await bench.use("write_file", path="a/b/c.txt", content="é")
    assert written.content == "Wrote 2 bytes to /workspace/a/b/c.txt."
    assert (bench.files / "a/b/c.txt").read_text() == "é"
    bench.box.begin({"folder/x": ""})
    assert (await bench.use("write_file", path="folder", content="")).content == "/workspace/folder is a folder."


async def test_edit_file_replaces_exactly_one(bench: Bench) -> None:
    """The one occurrence is replaced; bytes that are not UTF-8 stay as they were."""
    bench.box.begin({"a.py": b"x = 1\ny = 2\n\xff\n"})
    result = await bench.use("edit_file", path="a.py", old="y = 2", new="y = 3")
    assert result.content == "Replaced it in /workspace/a.py at line 2."
    assert (bench.files / "a.py").read_bytes() == b"x = 1\ny = 3\n\xff\n"


@pytest.mark.parametrize(("old", "needle"), [
    ("", "use write_file"),
    ("return 1", "occurs 2 times in /workspace/a.py (lines 2, 4)"),
    ("    retrun 2", "The nearest line is 6:     return 2"),
    ("nothing like it at all", "Read the file first"),
    ("def f():\n  return 1", "must match exactly, with its indentation"),
])
async def test_edit_file_explains_and_writes_nothing(bench: Bench, old: str, needle: str) -> None:
    """Text that is not there exactly once is explained with places, and the file is untouched."""
    content = "def f():\n    return 1\ndef g():\n    return 1\ndef h():\n    return 2\n"
    bench.box.begin({"a.py": content})
    result = await bench.use("edit_file", path="a.py", old=old, new="x")
    assert needle in result.content
    assert result.exit_code != 0
    assert (bench.files / "a.py").read_text() == content


async def test_edit_file_knows_windows_line_ends(bench: Bench) -> None:
    """Lines that end with \\r\\n are named as the reason."""
    bench.box.begin({"a": "one\r\ntwo\r\n"})
    assert "\\r\\n" in (await bench.use("edit_file", path="a", old="one\ntwo", new="x")).content


async def test_search_is_bounded(bench: Bench) -> None:
    """Matches come with file and line, at most a hundred, long lines cut; no match and a bad pattern are told."""
    bench.box.begin({"a.py": "TODO one\nx\nTODO two\n", "b/many": "TODO\n" * 500, "wide": "TODO" + "x" * 9000 + "\n"})
    assert (await bench.use("search", pattern="TODO (one|two)")).content.splitlines() == [
        "./a.py:1:TODO one", "./a.py:3:TODO two"]
    many = await bench.use("search", pattern="TODO", path="b")
    assert len(many.content.splitlines()) == 101
    assert many.truncated
    assert len((await bench.use("search", pattern="TODO", path="wide")).content) <= 310
    assert (await bench.use("search", pattern="FIXME")).content == "No line matches."
    assert "nmatched" in (await bench.use("search", pattern="(")).content
    assert "No such file" in (await bench.use("search", pattern="x", path="nowhere")).content
    assert (await bench.use("search", pattern="--include=*.py", path="--help")).exit_code != 0


async def test_diff_shows_every_kind_of_change(tmp_path: Path) -> None:
    """Changed, new, deleted and binary files are shown against the task's uploads."""
    start = tmp_path / "start"
    (start / "src").mkdir(parents=True)
    (start / "src/a.py").write_text("x = 1\n")
    (start / "gone.txt").write_text("bye\n")
    task = a_task(tmp_path, environment=EnvironmentSpec(uploads=(Upload(source=start, target="/workspace"),)))
    bench = Bench(tmp_path, task)
    bench.box.begin({"src/a.py": "x = 1\n", "gone.txt": "bye\n"})
    assert (await bench.use("diff")).content == "Nothing is changed."
    await bench.use("bash", command="sed -i s/1/2/ src/a.py; rm gone.txt; echo hi > new.txt; printf '\\0' > bin; : > e")
    shown = (await bench.use("diff")).content
    for line in ("--- a/workspace/src/a.py", "-x = 1", "+x = 2", "+++ /dev/null", "-bye", "+hi",
                 "Binary /workspace/bin: absent -> 1 bytes", "empty /workspace/e"):
        assert line in shown.splitlines()


def test_originals_follow_no_link_on_the_host(tmp_path: Path) -> None:
    """A link in a task's folder, to a file, a folder or upwards, shows the model nothing of the host."""
    secret, start = tmp_path / "secret", tmp_path / "start"
    secret.mkdir()
    (secret / "key").write_text("secret")
    (start / "real").mkdir(parents=True)
    (start / "real/key").write_text("public")
    (start / "link").symlink_to(secret / "key")
    (start / "folder").symlink_to(secret)
    whole = tmp_path / "whole"
    whole.symlink_to(secret)
    task = a_task(tmp_path, environment=EnvironmentSpec(uploads=(
        Upload(source=start, target="/workspace"), Upload(source=whole, target="/w"),
        Upload(source=start / "real/key", target="/etc/one"))))
    assert original(task, "/workspace/real/key") == original(task, "/etc/one") == b"public"
    for path in ("/workspace/link", "/workspace/folder/key", "/w/key", "/workspace/../secret/key", "/workspace",
                 "/workspace/none", "/elsewhere"):
        assert original(task, path) is None


async def test_run_tests_guesses_or_is_told(tmp_path: Path) -> None:
    """A given command wins; else files decide; without any it says so."""
    bench = Bench(tmp_path)
    assert "No tests are visible" in (await bench.use("run_tests")).content
    bench.box.begin({"Makefile": "test:\n\t@echo by make\n"})
    assert (await bench.use("run_tests")).content == "by make"
    bench.box.begin({"run_tests.sh": "echo by script; exit 3"})
    assert (await bench.use("run_tests")).exit_code == 3
    told = Bench(tmp_path, a_task(tmp_path, metadata={"test_command": "echo as told"}))
    assert (await told.use("run_tests")).content == "as told"


async def test_run_tests_finds_pytest(bench: Bench) -> None:
    """Python test files mean pytest."""
    bench.box.begin({"test_it.py": "def test_it():\n    assert 1 == 2\n"})
    result = await bench.use("run_tests")
    assert result.exit_code != 0
    assert "pytest" in result.content or "assert 1 == 2" in result.content


async def test_finish_ends(bench: Bench) -> None:
    """Where nothing was done, or all of it was shown, finish is done, with or without a summary."""
    bench.kit.history.append((ToolCall(id="a", name="read_file"), Observation(call="a", content="", exit_code=0)))
    assert (await bench.use("finish")).done
    assert (await bench.use("finish", summary="ok")).content == "ok"


def test_tools_are_chosen_by_set_and_by_name() -> None:
    """Sets and single tools add up, each once; an unknown name is refused with the nearest."""
    assert chosen(("default",)) == DEFAULT_TOOLS
    assert [name_of(maker) for maker in chosen(("bash", "plan", "bash", "finish"))] == ["bash", "plan", "finish"]
    with pytest.raises(UsageError, match="Did you mean 'session'"):
        chosen(("sesion",))
    with pytest.raises(UsageError, match="needs tools"):
        chosen(())
