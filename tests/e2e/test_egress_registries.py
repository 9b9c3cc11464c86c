"""Package managers as they are: ``pip install`` and ``npm install`` from allowed registries, and from no others."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import socket
import tarfile
import zipfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from upstreams import Host, host
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.egress.addresses import why_refused
from woodshed.sandbox.native.engine import NativeEngine

pytest.importorskip("cryptography", reason="cryptography is missing: pip install 'woodshed[intercept]'")
SPEC = EnvironmentSpec()
INDEX, FILES, NPM = "pypi.org", "files.pythonhosted.org", "registry.npmjs.org"


@pytest.fixture
async def engine(shed_home: Path) -> AsyncIterator[NativeEngine]:
    made = NativeEngine(shed_home)
    yield made
    await made.close()


def wheel() -> bytes:
    """A package of one module."""
    files = {
        "tinypkg.py": "answer = 42\n",
        "tinypkg-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tinypkg\nVersion: 1.0\n",
        "tinypkg-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files["tinypkg-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in (*files, "tinypkg-1.0.dist-info/RECORD"))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return made.getvalue()


def tarball() -> bytes:
    """A module for node."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        described = '{"name": "tinymod", "version": "1.0.0"}'
        for name, text in (("package.json", described), ("index.js", "module.exports = 42\n")):
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return made.getvalue()


def _path(head: bytes) -> str:
    return head.split(b" ")[1].decode()


async def _registry(stack: AsyncExitStack, folder: Path, name: str, kind: str, **answers: bytes) -> Host:
    (folder / name).mkdir()

    def body(head: bytes) -> bytes:
        return next((answer for part, answer in answers.items() if part in _path(head).replace("-", "_")), b"{}")

    return await stack.enter_async_context(host(name=name, folder=folder / name, kind=kind, body=body))


def _rule(name: str, at: Host) -> dict[str, object]:
    return {"host": name, "address": at.address, "ca_file": at.ca_file, "intercept": True, "read_only": True}


async def test_pip_installs_from_an_allowed_index(engine: NativeEngine, tmp_path: Path) -> None:
    """With nothing but its name pip finds a package and fetches it from the index's second host."""
    async with AsyncExitStack() as stack:
        link = f'<a href="https://{FILES}/packages/tinypkg-1.0-py3-none-any.whl">tinypkg-1.0-py3-none-any.whl</a>'
        index = await _registry(stack, tmp_path, INDEX, "text/html", simple=link.encode())
        files = await _registry(stack, tmp_path, FILES, "application/zip", packages=wheel())
        rules = [_rule(INDEX, index), _rule(FILES, files)]
        box = await engine.create(SPEC, SandboxPolicy.parse({"network": {"rules": rules}}))
        try:
            done = await box.exec("python3 -m pip install --target /workspace/there tinypkg", timeout_s=300)
            assert done.exit_code == 0, done
            told = await box.exec("PYTHONPATH=there python3 -c 'import tinypkg; print(tinypkg.answer)'")
            assert told.stdout == b"42\n"
        finally:
            await box.close()


async def test_pip_installs_from_no_other_index(engine: NativeEngine, tmp_path: Path) -> None:
    """A file at a host without a rule is not fetched."""
    async with AsyncExitStack() as stack:
        link = '<a href="https://evil.test/tinypkg-1.0-py3-none-any.whl">tinypkg-1.0-py3-none-any.whl</a>'
        index = await _registry(stack, tmp_path, INDEX, "text/html", simple=link.encode())
        box = await engine.create(SPEC, SandboxPolicy.parse({"network": {"rules": [_rule(INDEX, index)]}}))
        told: list[str] = []
        box.on_decision(lambda decision: told.append(f"{decision['verdict']} {decision['host']}"))
        try:
            done = await box.exec("python3 -m pip install --retries 0 --target there tinypkg", timeout_s=300)
            assert done.exit_code != 0, done
            assert "refused evil.test" in told
        finally:
            await box.close()


async def test_npm_installs_from_an_allowed_registry(engine: NativeEngine, tmp_path: Path) -> None:
    """With nothing but its name npm finds a module, checks and unpacks it, and node loads it."""
    packed = tarball()
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()
    found = {"name": "tinymod", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {
        "name": "tinymod", "version": "1.0.0",
        "dist": {"tarball": f"https://{NPM}/tinymod/-/tinymod-1.0.0.tgz", "integrity": integrity}}}}
    async with AsyncExitStack() as stack:
        answers = {"tgz": packed, "tinymod": json.dumps(found).encode()}
        registry = await _registry(stack, tmp_path, NPM, "application/json", **answers)
        box = await engine.create(SPEC, SandboxPolicy.parse({"network": {"rules": [_rule(NPM, registry)]}}))
        try:
            if (await box.exec("npm --version", timeout_s=120)).exit_code:
                pytest.skip("npm is missing on this machine: apt install npm")
            done = await box.exec("npm install --no-audit tinymod", timeout_s=300)
            assert done.exit_code == 0, done
            assert (await box.exec("node -p 'require(\"tinymod\")'")).stdout == b"42\n"
        finally:
            await box.close()


def _real(name: str, port: int) -> dict[str, Any]:
    """A rule for a host of the Internet."""
    try:
        address = str(socket.getaddrinfo(name, port)[0][4][0])
    except OSError:
        pytest.skip(f"{name} is not known here: a way to the Internet is needed")
    # A machine whose Internet is itself a stand-in may know the registries by special addresses.
    return {"host": name, "ports": [port]} | ({"address": address} if why_refused(address) else {})


APT = """
mkdir -p a/lists/partial a/cache/archives/partial a/sources && cd a
echo 'deb [trusted=yes] http://deb.debian.org/debian bookworm main' > sources/debian.list
apt="apt-get -q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=$PWD/sources/"
apt="$apt -o Dir::State::lists=$PWD/lists -o Dir::Cache=$PWD/cache -o APT::Sandbox::User=root"
$apt update && $apt download hello cowsay && ls
"""


@pytest.mark.slow
async def test_apt_fetches_from_the_real_archive(engine: NativeEngine) -> None:
    """apt-get asks in plain HTTP, many things on one connection, and has its lists and packages."""
    policy = SandboxPolicy.parse({"network": {"rules": [_real("deb.debian.org", 80)]}})
    box = await engine.create(SPEC, policy)
    try:
        if (await box.exec("apt-get --version")).exit_code:
            pytest.skip("apt-get is missing on this machine, which is no Debian")
        done = await box.exec(APT, timeout_s=300)
        assert b"hello_" in done.stdout, done
        assert b"cowsay_" in done.stdout, done
    finally:
        await box.close()


@pytest.mark.slow
async def test_the_real_registries_work(engine: NativeEngine) -> None:
    """pip and npm install from the registries of the Internet through TLS that nobody reads."""
    rules = [_real(name, 443) for name in (INDEX, FILES, NPM)]
    box = await engine.create(SPEC, SandboxPolicy.parse({"network": {"rules": rules}}))
    try:
        done = await box.exec("python3 -m pip install --target there six", timeout_s=300)
        assert done.exit_code == 0, done
        done = await box.exec("npm --version && npm install --no-audit left-pad", timeout_s=300)
        assert done.exit_code == 0, done
    finally:
        await box.close()
