"""What a tool of the host would run is flagged under every name it can have, and nothing else is."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import timeit
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from woodshed.sandbox import artefacts

FSMONITOR = b"[core]\n\tfsmonitor = ./run\n"
FLAGGED: dict[str, bytes] = {
    "/w/.git/hooks/pre-commit": b"", "/w/.GIT/Hooks/post-checkout": b"", "/w/.git/modules/sub/hooks/x": b"",
    "/w/.g\u200cit/hooks/x": b"", "/w/.git\ufeff/hooks/x": b"", "/w/git~1/hooks/x": b"", "/w/.git./hooks/x": b"",
    "/w/.git /hooks /x": b"", "/w/.git::$INDEX_ALLOCATION/hooks/x": b"", "/w/.husky/pre-push": b"",
    "/w/.hu\u017fky/pre-push": b"", "/w/.vscode/tasks.json": b"{}", "/w/.VSCODE/TASKS.JSON": b"{}",
    "/w/.v\u017fcode/settings.json": b"",
    "/w/a/b/.idea/runConfigurations/x.xml": b"", "/w/.idea/workspace.xml": b"", "/w/x.code-workspace": b"",
    "/w/.devcontainer/devcontainer.json": b"", "/w/.envrc": b"", "/w/mise.toml": b"", "/w/.claude/settings.json": b"",
    "/root/.bashrc": b"", "/root/.ssh/authorized_keys": b"", "/w/.cargo/config.toml": b"", "/w/.cargo/config": b"",
    "/usr/lib/python3/dist-packages/x.pth": b"import os; os.system('x')\n", "/w/sitecustomize.py": b"",
    "/w/.npmrc": b"registry=https://r\nscript-shell = ./x\n", "/w/.yarnrc.yml": b"yarnPath: .yarn/releases/x.cjs\n",
    "/w/.yarn/releases/x.cjs": b"", "/w/.pnpmfile.cjs": b"", "/w/.pre-commit-config.yaml": b"", "/w/.gdbinit": b"",
    "/w/.git/modules/a/b/c/d/e/f/g/hooks/x": b"", "/w/.husky/a/b/c/d/e": b"", "/w/.config/systemd/user/x.service": b"",
    "/w/.idea/runconfigurations/a/b/c/d.xml": b"", "/w/.mcp.json": b"", "/w/.kiro/settings/mcp.json": b"",
    "/w/.git": b"gitdir: ../elsewhere\n", "/w/.gitmodules": b'[submodule "x"]\nupdate = !./run\n',
    "/w/.git/config": FSMONITOR, "/w/bare/config": FSMONITOR, "/w/.git/config.worktree": FSMONITOR,
}  # fmt: skip
PLAIN: dict[str, bytes] = {
    "/w/src/main.py": b"", "/w/.git/hooks/pre-commit.sample": b"", "/w/.git/HEAD": b"ref: x\n",
    "/w/hooks/pre-commit": b"",
    "/w/.git/config": b"[core]\n\tbare = false\n\tfsmonitor = true\n[alias]\n\tst = status\n[pager]\n\tlog = false\n",
    "/w/config": b"anything = x\n",
    "/w/.gitmodules": b'[submodule "x"]\n\tpath = x\n\turl = https://x\n\tupdate = rebase\n',
    "/w/.vscode/extensions.json": b"", "/w/vscode/tasks.json": b"", "/w/.github/workflows/x.yml": b"",
    "/usr/lib/python3/site-packages/x.pth": b"../elsewhere\n", "/w/x.pth": b"import os\n",
    "/w/.npmrc": b"registry=https://r\n", "/w/Makefile": b"",
    "/w/package.json": b"", "/w/AGENTS.md": b"", "/w/.gitattributes": b"* filter=x\n", "/w/.env": b"",
    "/w/.git": b"something else", "/w/.gitignore": b"",
}  # fmt: skip


@pytest.mark.parametrize("path", FLAGGED, ids=ascii)
def test_what_runs_by_itself_is_flagged(path: str) -> None:
    """The file is named with a reason, also when it is too large to be read."""
    assert artefacts.reason(path, FLAGGED[path])
    assert artefacts.reason(path, None)


@pytest.mark.parametrize("path", PLAIN, ids=ascii)
def test_what_runs_when_asked_is_not(path: str) -> None:
    """Plain files and harmless contents of the same names are left alone."""
    assert artefacts.reason(path, PLAIN[path]) is None


def test_links_in_their_place_are_flagged() -> None:
    """A link where a tool looks for a folder or file to run is flagged for what it may lead to; other links are not."""
    for path in ("/w/.git", "/w/.vscode", "/w/.GIT/hooks", "/w/.husky", "/w/.envrc", "/w/.git/hooks/pre-push"):
        assert artefacts.link_reason(path), path
    for path in ("/w/hooks", "/w/config", "/w/src", "/w/.gitignore", "/w/.github"):
        assert artefacts.link_reason(path) is None, path


def test_the_table_in_the_documents_is_the_table() -> None:
    """Every reason that can be given stands in docs/artefacts.md."""
    page = (Path(__file__).parents[2] / "docs" / "artefacts.md").read_text()
    assert [rule.reason for rule in artefacts.RULES if rule.reason not in page] == []


@pytest.mark.parametrize(
    "part", [".git", ".git/hooks", ".claude", ".husky", "site-packages", ".config", "hooks", "\u200c", "a" * 200, "."],
    ids=ascii)
def test_a_hostile_path_costs_no_more_than_a_glance(part: str) -> None:
    """The longest paths that repeat what rules look for are judged in time that grows with their length alone."""
    short, long = ((f"/{part}" * (size // (len(part.encode()) + 1) - 1) + "/x.toml") for size in (500, 4000))

    def steps(path: str) -> float:
        return min(timeit.repeat(lambda: artefacts.reason(path, b""), timer=time.thread_time, number=200, repeat=5))

    assert steps(long) < 40 * steps(short)  # eight times, where nothing is quadratic (which would be 64)


@pytest.mark.parametrize("content", [
    b"[a]", b"[a", b'[a "b', b"[a]\n", b" ", b"\\\n", b"x=", b"[alias]x=!y\n", b"=", b"script-shell\t"], ids=ascii)
def test_a_hostile_content_costs_no_more_than_its_length(content: bytes) -> None:
    """A megabyte of what makes a parser go back and forth is judged in time that grows with its length alone."""
    def steps(size: int) -> float:
        text = content * (size // len(content))
        return min(timeit.repeat(
            lambda: [artefacts.reason(f"/w/{name}", text) for name in ("config", ".npmrc", ".git")],
            timer=time.thread_time, number=1, repeat=3))

    assert steps(1 << 20) < 80 * steps(1 << 16) + 0.05  # sixteen times, where nothing is quadratic (which would be 256)


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is missing: apt install git")


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(["git", "-C", folder, *arguments], env=env, capture_output=True, text=True, check=False,
                          errors="surrogateescape")


@needs_git
@pytest.mark.parametrize("text", [
    "[core]\n\tfsmonitor = RUN\n", "[CORE]FsMonitor=RUN", "\ufeff[core]\n fsmonitor = \"RUN\"\n",
    "[user][core]\n;x\nfsmonitor = RU\\\nN\n",
    "[core]\r\nfsmonitor = RUN\r\n", "[core] # [user]\n\n  fsmonitor\t=\tRUN ; x\n",
])
def test_git_runs_what_is_flagged(tmp_path: Path, text: str) -> None:
    """The control: git itself, asked for no more than a status, runs what a flagged configuration names."""
    run = tmp_path / "run"
    run.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    run.chmod(0o755)
    assert git(tmp_path, "init", "-q", "repo").returncode == 0
    config = tmp_path / "repo" / ".git" / "config"
    (tmp_path / "repo" / "file").touch()
    git(tmp_path / "repo", "add", "file")
    assert artefacts.reason(str(config), config.read_bytes()) is None
    content = text.replace("RU\\\nN", f"{str(run)[:5]}\\\n{str(run)[5:]}").replace("RUN", str(run)).encode()
    config.write_bytes(content)
    git(tmp_path / "repo", "status")
    assert (tmp_path / "ran").exists()
    assert artefacts.reason(str(config), content)


BLANK = st.sampled_from(["", "", " ", "\t", "\x0b", "\x0c", "\u2028", "\\\n", "\n", "\ufeff", ";x\n", "#[user]\n"])
HEADER = st.sampled_from([
    "", "", "[core]", "[ core ]", "[CORE]", "[alias]", "[alias.x]", "[filter \"a\\\"b]\"]", "[filter \"a\x0bb\"]",
    "[filter \"\u2028\"]", "[FILTER.x]", "[filter  \"\"]", "[include]", "[core \"x\"]", "[user][core]", "[core][user]",
])
LINE = st.tuples(
    BLANK, HEADER, BLANK, st.sampled_from(["fsmonitor", "FSMonitor", "sshCommand", "path", "clean", "x"]),
    BLANK, st.sampled_from(["=", ""]), BLANK, st.sampled_from(["!sh", "\"!sh\"", "\"\"!s", "sh", "true", "", "a\\\nb"]),
    st.sampled_from(["", ";x", " # x", "\r"]), st.just("\n"),
).map("".join)
TEXTS = st.lists(LINE, min_size=1, max_size=3).map("".join)


@needs_git
@given(text=TEXTS)
@example(text='[filter "a\x0bb"]\nclean = sh\n')
@example(text="[user][core]\nsshCommand = sh\n")
@settings(max_examples=150, deadline=None)
def test_no_spelling_of_a_configuration_hides(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Whatever git reads out of a text as a variable that runs something, the text is flagged."""
    path = tmp_path_factory.getbasetemp() / "config"
    path.write_bytes(text.encode())
    listed = git(path.parent, "config", "--file", str(path), "--null", "--list")
    runs = [entry for entry in listed.stdout.split("\0")[:-1] if dangerous(*entry.partition("\n")[::2])]
    if listed.returncode == 0 and runs:
        assert artefacts.reason("/w/.git/config", text.encode()), runs


def dangerous(name: str, value: str) -> bool:
    """Whether git runs something for the variable ``name``, as it lists it."""
    section, _, rest = name.partition(".")
    subsection, _, key = rest.rpartition(".")
    if not value:
        return False
    if section == "alias":
        return value.startswith("!")
    if subsection:
        return (section, key) == ("filter", "clean")
    return (section, key) in {("core", "sshcommand"), ("include", "path")} or (
        (section, key) == ("core", "fsmonitor") and value != "true")
