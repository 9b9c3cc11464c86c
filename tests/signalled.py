"""What user 0 of a sandbox may send to its first process, in every way there is."""

from __future__ import annotations

from woodshed.interfaces import SandboxEngine
from woodshed.model import EnvironmentSpec, SandboxPolicy

_STRIKE = """
import fcntl, os, signal
for number in range(1, 65):
    for strike in (lambda: os.kill(1, number), lambda: os.killpg(1, number),
                   lambda: signal.pidfd_send_signal(os.pidfd_open(1), number)):
        try: strike()
        except (OSError, PermissionError): pass
for owner in (1, -1):
    near, far = os.pipe()
    try:
        fcntl.fcntl(near, fcntl.F_SETOWN, owner)
        fcntl.fcntl(near, 10, signal.SIGKILL)  # F_SETSIG
        fcntl.fcntl(near, fcntl.F_SETFL, os.O_ASYNC)
        os.write(far, b"x")
    except OSError: pass
"""


async def assert_it_serves(engine: SandboxEngine) -> None:
    """A sandbox of ``engine`` goes on serving whatever signals its user 0 sends to its first process."""
    sandbox = await engine.create(EnvironmentSpec(), SandboxPolicy())
    try:
        await sandbox.write("strike.py", _STRIKE.encode())
        await sandbox.exec("kill -9 1; kill -STOP 1; kill -9 -1 & python3 strike.py", timeout_s=60)
        await sandbox.exec("python3 strike.py", timeout_s=60)
        assert (await sandbox.exec("echo well", timeout_s=60)).stdout == b"well\n"
    finally:
        await sandbox.close()
