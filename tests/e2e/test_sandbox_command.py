"""A sandbox by hand: run, shell, gc, doctor."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kit import leftovers, woodshed


def test_run_passes_output_and_exit_code_on(shed_home: Path, tmp_path: Path) -> None:
    """The command's own output and exit code come out, its files go in, and nothing is left."""
    (tmp_path / "note.txt").write_text("from the host\n")
    done = woodshed(
        "sandbox", "run", "--copy", f"{tmp_path}:/workspace/in", "--",
        "sh", "-c", "cat in/note.txt; echo oops >&2; exit 7", home=shed_home,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (7, "from the host\n")
    assert done.stderr.strip() == "oops"
    assert leftovers(shed_home) == []


def test_run_speaks_json(shed_home: Path) -> None:
    """With --json the result is one object, and a timeout is said."""
    done = woodshed("sandbox", "run", "--json", "--timeout", "1", "--", "sleep", "100", home=shed_home)
    told = json.loads(done.stdout)
    assert told["timed_out"]
    assert told["exit_code"] == done.returncode != 0


def test_an_image_that_is_none_is_the_users_mistake(shed_home: Path, tmp_path: Path) -> None:
    """What was written wrongly is a usage error: exit code 2, and the path."""
    done = woodshed("sandbox", "run", "--image", f"dir:{tmp_path}/nowhere", "--", "true", home=shed_home)
    assert done.returncode == 2
    assert f"{tmp_path}/nowhere is not a directory" in done.stderr


def test_a_shell_needs_a_terminal(shed_home: Path) -> None:
    """Without a terminal the command says which one to use instead."""
    done = woodshed("sandbox", "shell", home=shed_home)
    assert done.returncode == 2
    assert "woodshed sandbox run" in done.stderr


def test_a_shell_on_a_terminal_is_inside_and_leaves_with_its_exit_code(shed_home: Path) -> None:
    """Keys reach a shell inside the sandbox, its output comes back, and its exit code is ours."""
    controller, terminal = pty.openpty()
    shell = subprocess.Popen(
        [sys.executable, "-m", "woodshed", "sandbox", "shell"],
        env={**os.environ, "WOODSHED_HOME": str(shed_home)}, stdin=terminal, stdout=terminal, stderr=terminal,
    )  # fmt: skip
    os.close(terminal)
    try:
        os.write(controller, b"echo in-$(hostname)-$((40+2)); pwd; exit 5\n")
        assert shell.wait(timeout=120) == 5
        seen = read_all(controller)
    finally:
        shell.kill()
        os.close(controller)
    assert b"in-sandbox-42" in seen
    assert b"/workspace" in seen


def read_all(fd: int) -> bytes:
    """What a terminal still holds."""
    seen = b""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and select.select([fd], [], [], 0.5)[0]:
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        seen += data
    return seen


def test_doctor_proves_by_building_a_sandbox(shed_home: Path) -> None:
    """Doctor's findings name what was tried; ready means a sandbox was made, used and ended."""
    done = woodshed("doctor", "--json", home=shed_home)
    told = json.loads(done.stdout)
    assert told["ready"] == (done.returncode == 0)
    findings = {finding["name"]: finding for finding in told["findings"]}
    assert {"kernel", "sandbox", "limits", "storage"} <= findings.keys()
    if not told["ready"]:
        pytest.skip("this machine cannot make sandboxes: woodshed doctor says why")
    assert findings["sandbox"]["ok"]


def test_gc_removes_what_dead_processes_left(shed_home: Path) -> None:
    """A folder of an instance whose lock nobody holds is removed; running it again finds nothing."""
    dead = shed_home / "sandboxes" / "dead-instance" / "box-1" / "u"
    dead.mkdir(parents=True)
    assert json.loads(woodshed("sandbox", "gc", "--json", home=shed_home).stdout)["swept"] >= 1
    assert not dead.exists()
    assert json.loads(woodshed("sandbox", "gc", "--json", home=shed_home).stdout)["swept"] == 0


def test_a_policy_binds_what_runs(shed_home: Path, tmp_path: Path) -> None:
    """The file's rules hold, and what it does not hold is said on standard error."""
    policy = tmp_path / "policy.toml"
    policy.write_text('env = { ADDED = "1" }\n[[directories]]\npath = "/workspace/in"\naccess = "read"\n'
                      '[commands]\nallow = ["sh", "cat"]\n')
    (tmp_path / "note.txt").write_text("kept\n")
    script = "cat in/note.txt; echo $ADDED; echo x >in/note.txt; touch y"
    done = woodshed(
        "sandbox", "run", "--policy", policy, "--copy", f"{tmp_path}/note.txt:/workspace/in/note.txt",
        "--", "sh", "-c", script, home=shed_home,
    )  # fmt: skip
    assert done.stdout == "kept\n1\n"
    for said in ("'sh' is an interpreter", "advisory", "Read-only file system", "touch: Permission denied"):
        assert said in done.stderr
    assert done.returncode == 126


def test_a_policy_that_is_wrong_names_file_field_and_remedy(shed_home: Path, tmp_path: Path) -> None:
    """A missing file, broken TOML, an unknown key or a contradiction is a usage error: exit code 2."""
    policy = tmp_path / "policy.toml"
    for content, said in (
        (None, "cannot be read"), ("a = [", "broken TOML"), ("nowexec = true", "Did you mean 'noexec'?"),
        ('[commands]\nallow = ["cat"]\ndeny = ["ls"]', "commands.deny: allow is given too"),
        ('[[directories]]\npath = "/workspace"\naccess = "hidden"', "the working directory /workspace is hidden"),
    ):
        if content is not None:
            policy.write_text(content)
        done = woodshed("sandbox", "run", "--policy", policy, "--", "true", home=shed_home)
        assert done.returncode == 2
        assert said in done.stderr
    assert leftovers(shed_home) == []
