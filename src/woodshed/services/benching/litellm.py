"""LiteLLM's proxy as a yardstick: found, or installed for a benchmark alone, and started in front of an upstream."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from woodshed.errors import EnvironmentFault, UsageError
from woodshed.services.benching.lanes import Lane, Target, requests

REQUIREMENT = "litellm[proxy]==1.106.12"
INSTALL = "install"
_ASK = "import importlib.metadata as m; import fastapi, litellm; print(m.version('litellm'))"
_PATIENCE_S, _LOOK_S = 120.0, 0.5


@dataclass(frozen=True, slots=True)
class Found:
    """A Python that has the proxy, and its version."""

    python: Path
    version: str


def found(python: str | None, place: Path, told: Callable[[str], None]) -> tuple[Found | None, str | None]:
    """The proxy, or why there is none. ``install`` makes an environment for it below ``place``, which takes minutes.

    Raises UsageError for a Python that does not have it.
    """
    if python is None:
        return None, f"not asked for: say --litellm PYTHON (one that has {REQUIREMENT}), or --litellm {INSTALL}"
    if python != INSTALL:
        return Found(Path(python), _version(Path(python))), None
    told(f"installing {REQUIREMENT}, for this measurement alone")
    venv = place / "litellm"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    done = subprocess.run([venv / "bin" / "pip", "install", "-q", REQUIREMENT], capture_output=True, text=True,
                          check=False)
    if done.returncode:
        return None, f"pip install {REQUIREMENT} failed: {done.stderr.strip()[-300:]}"
    return Found(venv / "bin" / "python", _version(venv / "bin" / "python")), None


def _version(python: Path) -> str:
    try:
        done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(f"{python} does not have {REQUIREMENT} ({type(error).__name__})", field="--litellm",
                         remedy=f"Say --litellm {INSTALL}, or a Python that has it.") from None
    return done.stdout.strip().splitlines()[-1]


def command(proxy: Found, upstream: str, place: Path) -> tuple[Sequence[str], Target, dict[str, str]]:
    """How it is started, with one worker and nothing logged; where it is then; and with which environment."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config, key = place / "litellm.yaml", f"sk-{secrets.token_urlsafe(24)}"  # JSON is YAML
    config.write_text(json.dumps({
        "model_list": [{"model_name": "bench", "litellm_params": {
            "model": "openai/bench", "api_base": upstream, "api_key": "none"}}],
        "litellm_settings": {"telemetry": False, "num_retries": 0}}))
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False", "LITELLM_LOG": "ERROR",
           "LITELLM_MODE": "PRODUCTION", "LITELLM_MASTER_KEY": key, "NO_PROXY": "127.0.0.1"}
    argv = (str(proxy.python), str(proxy.python.parent / "litellm"), "--config", str(config), "--host", "127.0.0.1",
            "--port", str(port), "--num_workers", "1")
    return argv, Target(f"http://127.0.0.1:{port}/v1", key), env


async def ready(target: Target, process: asyncio.subprocess.Process, log: Path) -> None:
    """Once it answers. Raises EnvironmentFault where it ends, or does not in time, with the end of its ``log``."""
    asking = requests(target)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while process.returncode is None:
                try:
                    lane = await Lane.open(target)
                    await lane.ask(next(asking))
                    lane.close()
                    return
                except (OSError, EnvironmentFault):
                    await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise EnvironmentFault(f"LiteLLM's proxy does not answer: {_end(log)}") from None
    raise EnvironmentFault(f"LiteLLM's proxy ended before it answered ({process.returncode}): {_end(log)}")


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-600:].strip()
