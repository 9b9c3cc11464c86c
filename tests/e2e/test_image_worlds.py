"""Dockerfiles of the common kind over a real Debian from a real registry, as root and as an ordinary user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import worlds
from kit import agent_row, leftovers
from nobody import NOBODY, as_nobody, environment, python_for_all

pytestmark = pytest.mark.slow

COMMON = """
# syntax=docker/dockerfile:1
ARG BASE
FROM ${BASE}
ENV DEBIAN_FRONTEND=noninteractive PIP_BREAK_SYSTEM_PACKAGES=1
WORKDIR /app
COPY repo/ /repo/
RUN echo "deb [trusted=yes] file:/repo ./" > /etc/apt/sources.list \\
    && rm -rf /etc/apt/sources.list.d/* \\
    && apt-get update \\
    && apt-get install -y --no-install-recommends hello tree \\
    && rm -rf /var/lib/apt/lists/*
COPY wheels /tmp/wheels
RUN pip install --no-index --find-links /tmp/wheels six
COPY --chmod=644 app/ ./
"""

STAGES = """
ARG BASE
FROM ${BASE} AS build
WORKDIR /src
COPY app/ .
RUN python3 -m compileall -q . && node -e 'require("fs").writeFileSync("made.json", JSON.stringify({by: "node"}))'

FROM ${BASE}
WORKDIR /app
COPY --from=build --chown=www-data:www-data /src/made.json /src/greet.py ./
RUN useradd --create-home --uid 1234 worker && ls -la
USER worker
RUN id -u > /home/worker/me || id -u > /tmp/me
USER root
"""

HARBORS = """
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends hello && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY app/requirements.txt .
RUN pip install --no-cache-dir --break-system-packages -r requirements.txt
COPY app/ .
CMD ["python3", "greet.py"]
"""

TASK = """
schema_version = "1.4"
[agent]
timeout_sec = 120
[verifier]
timeout_sec = 120
[woodshed]
network = "none"
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="woodshed-worlds-"))
    folder.chmod(0o755)  # an ordinary user reads the context, and pytest's own folders are root's alone
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def base(place: Path) -> Iterator[str]:
    """The name of a Debian in a registry of this machine."""
    tar = worlds.debian(place)
    with worlds.registry(place / "registry") as address:
        layout = worlds.packed(place / "layout", tar)
        for name in ("debian:12", "library/python:3.11-slim"):
            worlds.push(layout, address, name)
        yield f"{address}/debian:12"


@pytest.fixture(scope="module")
def context(place: Path) -> Path:
    folder = place / "context"
    worlds.repository(folder / "repo", "hello", "tree")
    (folder / "app").mkdir()
    (folder / "app/requirements.txt").write_text("six==1.16.0\n")
    (folder / "app/greet.py").write_text("import six\nprint('greetings from', six.__name__)\n")
    done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder / "wheels", "six"],
                          capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs a Python index: {done.stderr[-200:]}")
    (folder / "Dockerfile").write_text(COMMON)
    (folder / "Stages").write_text(STAGES)
    (folder / "Harbors").write_text(HARBORS)
    worlds.reaching(folder / "policy.toml", worlds.DEBIAN, *worlds.PYPI)
    return folder


@pytest.fixture(params=["root", "user"])
def run(request: pytest.FixtureRequest, base: str, tmp_path: Path, nobodys_folder: Path) -> Iterator[Run]:
    """The command line, as root or as an ordinary user, with the registry as the mirror of docker.io."""
    mirror = {"WOODSHED_REGISTRY_MIRROR": f"http://{base.partition('/')[0]}"}
    if request.param == "root":
        def command(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run([sys.executable, "-m", "woodshed", *map(str, words)], capture_output=True, text=True,
                                  check=False,
                                  env={**os.environ, "WOODSHED_HOME": str(tmp_path / "home"), **mirror, **more})

        yield command
        assert leftovers(tmp_path / "home") == []
        return
    if os.geteuid() != 0:
        pytest.skip("needs root, to become an ordinary user")
    python = python_for_all()
    if python is None:
        pytest.skip(f"needs a Python {sys.version_info[0]}.{sys.version_info[1]} that everybody may run")
    env = {**environment(nobodys_folder), "WOODSHED_HOME": str(nobodys_folder / "home"), **mirror}
    yield lambda *words, **more: as_nobody(python, "-m", "woodshed", *map(str, words), env={**env, **more})


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr + done.stdout
    value: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return value


def test_the_common_dockerfile_builds_and_is_cached(run: Run, base: str, context: Path) -> None:
    """A base from a registry, apt, pip and COPY: built without a daemon; the second time nothing is done again."""
    first = told(run("image", "build", context, "--build-arg", f"BASE={base}", "-t", "common", "--json"))
    started = time.perf_counter()
    assert told(run("image", "build", context, "--build-arg", f"BASE={base}", "-t", "common", "--json")) == first
    print(f"second build: {time.perf_counter() - started:.2f} s, its command line included")
    inside = run("sandbox", "run", "--image", "common", "--", "bash", "-c",
                 "hello && tree --version && cd /app && python3 greet.py && node -e 'console.log(6 * 7)'")
    assert inside.returncode == 0, inside.stderr
    assert "Hello, world!" in inside.stdout
    assert "greetings from six\n42\n" in inside.stdout


def test_what_a_policy_lets_a_build_fetch(run: Run, base: str, context: Path, place: Path) -> None:
    """apt-get and pip fetch through the policy's hosts, from the names that images have; without it neither does.

    The task of it is built and runs in the same way, by the setting.
    """
    build = ("image", "build", context, "-f", context / "Harbors", "-t", "fetched", "--json")
    without = run(*build)
    assert without.returncode == 1, without.stderr
    assert "line 3: RUN" in without.stderr
    first = told(run(*build, "--policy", context / "policy.toml"))
    started = time.perf_counter()
    assert told(run(*build, "--policy", context / "policy.toml")) == first
    print(f"second build: {time.perf_counter() - started:.2f} s, its command line included")
    inside = run("sandbox", "run", "--image", "fetched", "--", "sh", "-c", "hello && python3 greet.py")
    assert inside.stdout == "Hello, world!\ngreetings from six\n", inside.stderr  # in /app: WORKDIR holds
    folder = place / f"fetching-{len(list(place.iterdir()))}"
    _task(folder, HARBORS, context)
    row = agent_row(told(run("run", folder, "--agent", "oracle", "--json",
                             WOODSHED_BUILD_POLICY=str(context / "policy.toml"))), "oracle")
    assert (row["valid"], row["passed"]) == (1, 1), row


def test_several_stages_meet(run: Run, base: str, context: Path) -> None:
    """What one stage made is copied into the next, for the user it is meant for; a later user acts as itself."""
    told(run("image", "build", context, "-f", context / "Stages", "--build-arg", f"BASE={base}", "-t", "staged",
             "--json"))
    inside = run("sandbox", "run", "--image", "staged", "--", "bash", "-c",
                 "cat /app/made.json; stat -c %U /app/made.json; cat /home/worker/me /tmp/me 2>/dev/null; ls /src")
    made, me = inside.stdout.split()
    assert made in ('{"by":"node"}www-data', '{"by":"node"}root')
    assert me == ("1234" if made.endswith("www-data") else "0")  # an ordinary user's sandboxes have one user alone
    assert "No such file" in inside.stderr  # /src is another stage's


def test_a_task_with_a_dockerfile_runs(run: Run, base: str, context: Path, place: Path) -> None:
    """A Harbor task whose world is a Dockerfile: the oracle solves it, doing nothing does not."""
    folder = place / "task"
    if not folder.exists():
        _task(folder, COMMON.replace("ARG BASE", f"ARG BASE={base}"), context)
    for agent, passed in (("oracle", 1), ("nop", 0)):
        summary = told(run("run", folder, "--agent", agent, "--json"))
        row = agent_row(summary, agent)
        assert (row["valid"], row["passed"]) == (1, passed), summary


def _task(folder: Path, dockerfile: str, context: Path) -> None:
    shutil.copytree(context, folder / "environment")
    (folder / "environment/Dockerfile").write_text(dockerfile)
    for name in ("Stages", "Harbors", "policy.toml"):
        (folder / "environment" / name).unlink()
    (folder / "task.toml").write_text(TASK)
    (folder / "instruction.md").write_text("Write the answer to /app/answer.txt.\n")
    for name, text in {
        "tests/test.sh": "mkdir -p /logs/verifier\ncd /app && hello >/dev/null && python3 greet.py >/dev/null\n"
                         "if [ \"$(cat /app/answer.txt)\" = 42 ]; then echo 1; else echo 0; fi"
                         " > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "python3 -c 'print(6 * 7)' > /app/answer.txt\n",
    }.items():
        (folder / name).parent.mkdir()
        (folder / name).write_text(f"#!/bin/bash\n{text}")
        (folder / name).chmod(0o755)
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, NOBODY, NOBODY) if os.geteuid() == 0 else None
