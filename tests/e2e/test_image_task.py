"""A Harbor task whose world is a Dockerfile, from the command line to the verdict."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import ocikit as oci
from kit import agent_row, leftovers, run_json, woodshed
from nobody import as_nobody, environment, python_for_all

pytestmark = pytest.mark.skipif(not oci.has_busybox(), reason=oci.NO_BUSYBOX)

FILES = {
    "task.toml": "[woodshed]\nnetwork = \"none\"\n",
    "instruction.md": "Make /app/answer hold the sum of /app/numbers.\n",
    "environment/numbers": "20\n22\n",
    "environment/Dockerfile": """FROM box
# the programs of a task are called bash
RUN printf '#!/bin/sh\\nexec /bin/sh "$@"\\n' > /bin/bash && chmod 755 /bin/bash
WORKDIR /app
COPY numbers .
""",
    "tests/test.sh": "mkdir -p /logs/verifier; [ \"$(cat answer)\" = 42 ] && r=1 || r=0\n"
                     "echo $r > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "s=0; while read n; do s=$((s + n)); done < numbers; echo $s > answer\n",
}


def task(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"#!/bin/bash\n{text}" if name.endswith(".sh") else text)
    return folder


def test_a_task_with_a_dockerfile(tmp_path: Path) -> None:
    """The reference passes and doing nothing does not; every attempt is valid, and nothing is left."""
    home = tmp_path / "home"
    layout = oci.layout(tmp_path / "box", oci.busybox_layer(), inner={"Env": ["PATH=/bin"]})
    assert woodshed("image", "pull", layout, "--as", "box", home=home).returncode == 0
    folder = task(tmp_path / "t")
    for agent, passed in (("oracle", 1), ("nop", 0)):
        row = agent_row(run_json(folder, "--agent", agent, home=home), agent)
        assert (row["attempts"], row["valid"], row["passed"]) == (1, 1, passed)
    assert leftovers(home) == []


def test_a_task_whose_image_cannot_be_had(tmp_path: Path) -> None:
    """An image that does not build is the environment's fault: an invalid attempt, never a failed one."""
    home, folder = tmp_path / "home", task(tmp_path / "t")
    (folder / "environment/Dockerfile").write_text("FROM localhost:1/gone\nWORKDIR /app\n")
    row = agent_row(run_json(folder, "--agent", "oracle", home=home), "oracle")
    assert (row["valid"], row["failed"]) == (0, 0)
    assert row["invalid"] == {"environment": 1}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become an ordinary user")
def test_as_an_ordinary_user(nobodys_folder: Path) -> None:
    """The same without any privilege."""
    python = python_for_all()
    if python is None:
        pytest.skip(f"needs a Python {sys.version_info[0]}.{sys.version_info[1]} that everybody may run")
    env = {**environment(nobodys_folder), "WOODSHED_HOME": str(nobodys_folder / "home")}

    def run(*words: str | Path) -> CompletedProcess[str]:
        done = as_nobody(python, "-m", "woodshed", *words, env=env)
        assert done.returncode == 0, done.stderr
        return done

    layout = oci.layout(nobodys_folder / "box", oci.busybox_layer(), inner={"Env": ["PATH=/bin"]})
    folder = task(nobodys_folder / "t")
    for path in (nobodys_folder / "box", folder):
        for below in (path, *path.rglob("*")):
            shutil.chown(below, "nobody")
    run("image", "pull", layout, "--as", "box")
    assert '"passed": 1' in run("run", folder, "--agent", "oracle", "--json").stdout
