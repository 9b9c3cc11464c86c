"""Root file systems of a real distribution, made by mmdebstrap, and a real registry: what slow tests of images need."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ocikit import Layout
from woodshed.sandbox.egress.addresses import why_refused

INCLUDED = "python3-pip,nodejs"
DEBIAN, PYPI, NPM = "deb.debian.org", ("pypi.org", "files.pythonhosted.org"), "registry.npmjs.org"


def need(*programs: str) -> None:
    """Skip unless ``programs`` are installed; their packages in Debian have the same names."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install {' '.join(missing)}")


def debian(folder: Path) -> bytes:
    """The tar of a minimal Debian with apt, Python, pip and Node; skips where its mirror cannot be reached."""
    need("mmdebstrap")
    target = folder / "world.tar"
    done = subprocess.run(["mmdebstrap", "--variant=apt", f"--include={INCLUDED}", "bookworm", str(target)],
                          capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs a Debian mirror for mmdebstrap: {done.stderr.strip().splitlines()[-1:]}")
    return target.read_bytes()


def reaching(file: Path, *hosts: str) -> Path:
    """A policy in ``file`` that lets a build reach ``hosts`` the way this machine does; skips where it does not.

    Where they lead to what no name should (a mirror or a proxy at an address of its own), the rules say so. What reads
    TLS on the way has an authority that this machine trusts and no image does: ``intercept`` trusts it outside.
    """
    text = ""
    for host in hosts:
        try:
            address = str(socket.getaddrinfo(host, 443, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
            socket.create_connection((host, 80 if host == DEBIAN else 443), 10).close()
        except OSError as error:
            pytest.skip(f"needs {host}: {error}")
        text += f'[[network.rules]]\nhost = "{host}"\nintercept = {str(host != DEBIAN).lower()}\n'
        text += f'address = "{address}"\n' if why_refused(address) else ""
    file.write_text(text)
    return file


def repository(folder: Path, *packages: str) -> None:
    """A repository of apt with ``packages`` of the host's own distribution; skips where they cannot be fetched."""
    need("apt-get", "dpkg-deb")
    folder.mkdir(parents=True)
    done = subprocess.run(["apt-get", "download", *packages], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs packages of a Debian mirror: {done.stderr.strip()[-200:]}")
    index = []
    for deb in sorted(folder.glob("*.deb")):
        control = subprocess.run(["dpkg-deb", "-f", deb], capture_output=True, text=True, check=True).stdout.rstrip()
        digest = hashlib.sha256(deb.read_bytes()).hexdigest()
        index.append(f"{control}\nFilename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {digest}\n")
    (folder / "Packages").write_text("\n".join(index))


@contextmanager
def registry(folder: Path, *more: str) -> Iterator[str]:
    """A docker-registry on a free port of this machine: its address."""
    need("docker-registry")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yml"
    config.write_text("\n".join([
        "version: 0.1", f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}",
        f"http: {{addr: {address}}}", "log: {accesslog: {disabled: true}, level: error}", *more, ""]))
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(["docker-registry", "serve", str(config)], stdout=log, stderr=log)
        try:
            _answers(address, server)
            yield address
        finally:
            server.terminate()
            server.wait()


def _answers(address: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(f"http://{address}/v2/").close()
            return
        except urllib.error.HTTPError as error:
            error.close()
            return
        except OSError:
            assert server.poll() is None, "docker-registry ended"
            time.sleep(0.1)
    raise AssertionError("docker-registry does not answer")


def push(layout: Path, address: str, name: str, *options: str) -> None:
    """Put the image ``latest`` of a layout into a registry."""
    need("skopeo")
    auth = layout.parent / "auth.json"
    auth.write_text("{}")  # whoever runs the test may not read the machine's own
    done = subprocess.run(["skopeo", "--tmpdir", str(layout.parent), "copy", "-q", "--dest-tls-verify=false", *options,
                           f"oci:{layout}:latest", f"docker://{address}/{name}"], capture_output=True, text=True,
                          check=False, env={**os.environ, "REGISTRY_AUTH_FILE": str(auth)})
    assert done.returncode == 0, done.stderr


def packed(folder: Path, tar: bytes) -> Path:
    """A layout with one image of one layer."""
    Layout(folder).image([tar], {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                                 "Cmd": ["bash"]})
    return folder
