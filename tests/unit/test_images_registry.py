"""Pulling from registries: tokens, redirects, cut connections, mirrors, damage, logins that stay secret."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import ocikit as oci
import worlds
from ocikit import E
from registryserver import Server
from woodshed.dockerfile.stages import machine
from woodshed.errors import EnvironmentFault, ImageFault, UsageError, WoodshedError
from woodshed.sandbox.images import Images, registry, roads, web
from woodshed.sandbox.images.crossing import Crossing
from woodshed.sandbox.images.web import Refused, Web
from woodshed.sandbox.native.engine import NativeEngine

LAYER = oci.layer(E("f", content=bytes(range(256)) * 4000))
SECRET = "s3cr3t-pa55"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    oci.layout(tmp_path / "layout", LAYER, pack="tar")
    made = Server(tmp_path / "layout")
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test waits between tries, nor sees the logins of whoever runs it."""
    monkeypatch.setattr("woodshed.sandbox.images.web.sleep", SLEPT.append)
    SLEPT.clear()
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


SLEPT: list[float] = []


class Puller:
    def __init__(self, home: Path) -> None:
        self.engine = NativeEngine(home)
        self.images = Images(home, None, Crossing(self.engine, asyncio.get_running_loop()))

    async def pull(self, name: str) -> bytes:
        """The one file of the image."""
        image = await asyncio.to_thread(self.images.containers.pull, name)
        return (self.images.layers.path(image.layers[0]) / "f").read_bytes()

    def forget(self) -> None:
        """No layer is here any more."""
        for name in self.images.layers.sizes():
            shutil.rmtree(self.images.layers.path(name))

    def parts(self) -> list[Path]:
        return list((self.images.layers.root / ".blobs").iterdir())


@pytest.fixture
async def puller(tmp_path: Path) -> AsyncIterator[Puller]:
    made = Puller(tmp_path / "home")
    yield made
    made.images.close()
    await made.engine.close()


WHOLE = bytes(range(256)) * 4000


def login(tmp_path: Path, **auths: Any) -> str:
    """Logins as Docker keeps them; the header that goes with ``user``."""
    text = base64.b64encode(f"user:{SECRET}".encode()).decode()
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/config.json").write_text(json.dumps(auths).replace("LOGIN", text))
    return f"Basic {text}"


async def test_a_pull(server: Server, puller: Puller) -> None:
    """Manifest, configuration and layer; a name that is here is not asked for again."""
    assert await puller.pull(f"{server.address}/a") == WHOLE
    asked = len(server.seen)
    await asyncio.to_thread(puller.images.containers.get, f"{server.address}/a")
    assert len(server.seen) == asked
    assert puller.parts() == []
    assert await puller.pull(f"{server.address}/a") == WHOLE
    assert not any("blobs" in path for path, _ in server.seen[asked:] if path.endswith(server_layer(server)))


def server_layer(server: Server) -> str:
    manifest = json.loads((server.layout / "index.json").read_text())["manifests"][0]["digest"]
    found = json.loads((server.layout / "blobs" / manifest.replace(":", "/")).read_text())
    return str(found["layers"][0]["digest"])


async def test_by_digest(server: Server, puller: Puller) -> None:
    """A digest in the name is what the manifest must have."""
    digest = json.loads((server.layout / "index.json").read_text())["manifests"][0]["digest"]
    assert await puller.pull(f"{server.address}/a@{digest}") == WHOLE
    server.spoil["manifest"] = b"{}"
    with pytest.raises(ImageFault, match="something else"):
        await puller.pull(f"{server.address}/a@{digest}")


async def test_tokens(server: Server, puller: Puller) -> None:
    """A token is asked for where the registry says, once, and sent with what follows."""
    server.token = "tok"
    assert await puller.pull(f"{server.address}/a") == WHOLE
    assert sum("/token" in path for path, _ in server.seen) == 1


async def test_logins(server: Server, puller: Puller, tmp_path: Path) -> None:
    """Docker's logins are used for tokens, and themselves where a registry wants that."""
    server.login = login(tmp_path, auths={server.address: {"auth": "LOGIN"}})
    assert await puller.pull(f"{server.address}/a") == WHOLE
    server.token = "tok"
    assert await puller.pull(f"{server.address}/b") == WHOLE


@pytest.mark.parametrize(("auths", "why"), [
    ({}, "no token without a login"), ({"credsStore": "desktop"}, "credential helper 'desktop'"),
    ({"auths": {"A": {"auth": "b3RoZXI6d3Jvbmc="}}}, "refuses the login"),
    ({"auths": {"A": {"identitytoken": "x"}}}, "identity token"), ({"auths": {"A": {"auth": "%%"}}}, "cannot be read"),
    ({"credHelpers": {"A": "gcloud"}}, "credential helper 'gcloud'"),
])
async def test_logins_that_do_not_do(
    server: Server, puller: Puller, tmp_path: Path, auths: dict[str, Any], why: str
) -> None:
    """No login, a wrong one, one that only a program knows: said so, and none of it shown."""
    server.token, server.login = "tok", "Basic " + base64.b64encode(f"user:{SECRET}".encode()).decode()
    login(tmp_path, **json.loads(json.dumps(auths).replace('"A"', f'"{server.address}"')))
    with pytest.raises((ImageFault, UsageError), match=why) as caught:
        await puller.pull(f"{server.address}/a")
    for secret in ("wrong", "b3RoZXI6d3Jvbmc=", SECRET):
        assert secret not in f"{caught.value!r} {caught.value.__cause__!r}"


async def test_redirects_carry_no_login(server: Server, puller: Puller, tmp_path: Path) -> None:
    """What another host is asked for is asked for without the token."""
    other = Server(server.layout)
    try:
        server.token, server.elsewhere = "tok", f"http://{other.address}"
        assert await puller.pull(f"{server.address}/a") == WHOLE
        assert other.seen
        assert not any("Authorization" in headers for _, headers in other.seen)
    finally:
        other.stop()


@pytest.mark.parametrize("to", ["http://registry.example/x", "file:///etc/passwd", "ftp://127.0.0.1/x",
                                "http://169.254.169.254/latest"])
async def test_redirects_that_are_not_followed(server: Server, puller: Puller, to: str) -> None:
    """Only TLS, and plain HTTP where it is allowed, are spoken, wherever a registry sends us."""
    server.elsewhere = to
    with pytest.raises(ImageFault, match="not spoken to without TLS"):
        await puller.pull(f"{server.address}/a")
    server.elsewhere, server.token, server.realm = "", "tok", to
    with pytest.raises(ImageFault, match="not spoken to without TLS"):
        await puller.pull(f"{server.address}/b")


async def test_who_is_redirected_to_learns_no_login(server: Server, puller: Puller, tmp_path: Path) -> None:
    """A host that a registry redirects to and that asks for a login gets none, and its realm is not asked for tokens.

    The control: a realm that the registry itself names gets the login, for that is what it is for.
    """
    server.login, server.token = login(tmp_path, auths={server.address: {"auth": "LOGIN"}}), "abc"
    other = Server(tmp_path / "layout")
    try:
        other.token, other.login = "stolen", server.login
        server.elsewhere = f"http://{other.address}"
        with pytest.raises(ImageFault, match="to which it redirects, wants a login"):
            await puller.pull(f"{server.address}/a")
        assert [path.partition("?")[0] for path, _ in other.seen][-1].startswith("/v2/")
        assert not any("Authorization" in headers for _, headers in other.seen)
        server.elsewhere, server.token, server.realm = "", "stolen", f"http://{other.address}/token"
        await puller.pull(f"{server.address}/a")
        assert any(headers.get("Authorization") == server.login for _, headers in other.seen)
    finally:
        other.stop()


@pytest.mark.parametrize("how", ["redirect", "realm"])
async def test_registries_lead_nowhere_on_this_machine(
    server: Server, puller: Puller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A registry elsewhere that leads to this machine, by redirect or for a token, is refused before anything is said.

    The control: a registry of this machine's may (:func:`test_redirects_carry_no_login`).
    """
    real, other = socket.getaddrinfo, Server(tmp_path / "layout")

    def known(host: Any, *rest: Any, **more: Any) -> Any:
        return real("127.0.0.1" if host == "registry.example" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", known)
    monkeypatch.setenv("WOODSHED_REGISTRY_HTTP", "registry.example")
    port = server.address.partition(":")[2]
    try:
        await puller.pull(f"registry.example:{port}/first")  # itself it may be anywhere: whoever pulls has named it
        server.token, server.realm = ("abc", f"http://{other.address}/token") if how == "realm" else ("", "")
        server.elsewhere = f"http://{other.address}"
        puller.forget()
        with pytest.raises(ImageFault, match=r"leads to 127\.0\.0\.1, which is this machine"):
            await puller.pull(f"registry.example:{port}/a")
        assert other.seen == []
    finally:
        other.stop()


async def test_tokens_are_asked_for_with_tls() -> None:
    """A registry that is spoken to with TLS cannot have a login sent without, to whomever."""
    web = Web("https://registry.example", "registry.example", "s")
    with pytest.raises(Refused, match="without TLS"):
        web._answer('Bearer realm="http://127.0.0.1:1/token"')


def test_addresses_that_no_registry_leads_to() -> None:
    """Loopback, link-local and metadata, also as IPv4 in IPv6; private ones may be a company's."""
    refused = ("127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1", "169.254.169.254",
               "::ffff:169.254.169.254", "fe80::1%eth0", "fd00:ec2::254", "100.100.100.200", "168.63.129.16")
    assert [address for address in refused if not roads._why(address, local=False)] == []
    assert [address for address in ("1.1.1.1", "10.0.0.1", "fd01::1", "2606:4700::1")
            if roads._why(address, local=False)] == []


async def test_a_registry_that_drips(server: Server, puller: Puller, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes in drops is given up, however many drops it says will come; the control is patience."""
    monkeypatch.setattr("woodshed.sandbox.images.web._LEAST_BYTES", 1 << 40)
    await puller.pull(f"{server.address}/a")
    monkeypatch.setattr("woodshed.sandbox.images.web._PATIENCE_S", 0.0)
    puller.forget()
    with pytest.raises(EnvironmentFault, match="bytes came in"):
        await puller.pull(f"{server.address}/b")


async def test_layers_of_other_places(server: Server, puller: Puller, tmp_path: Path) -> None:
    """Addresses that a manifest gives for a layer are not asked: the registry has it, or nobody."""
    other = Server(tmp_path / "layout")
    try:
        index = json.loads((tmp_path / "layout/index.json").read_text())["manifests"][0]["digest"]
        manifest = json.loads((tmp_path / "layout/blobs" / index.replace(":", "/")).read_text())
        for layer in manifest["layers"]:
            layer["urls"] = [f"http://{other.address}/v2/a/blobs/{layer['digest']}"]
            layer["mediaType"] = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
            (tmp_path / "layout/blobs" / layer["digest"].replace(":", "/")).rename(tmp_path / "away")
        server.spoil["manifest"] = json.dumps(manifest).encode()
        with pytest.raises((ImageFault, EnvironmentFault)):
            await puller.pull(f"{server.address}/a")
        assert other.seen == []
    finally:
        other.stop()


@pytest.mark.parametrize("change", [
    {"manifests": []}, {"layers": [], "mediaType": "application/vnd.oci.image.index.v1+json"},
])
async def test_documents_that_are_two_things(
    server: Server, puller: Puller, tmp_path: Path, change: dict[str, Any]
) -> None:
    """A manifest that is a list as well, or a list that is a manifest, is refused: others would read the other."""
    index = json.loads((tmp_path / "layout/index.json").read_text())["manifests"][0]["digest"]
    manifest = json.loads((tmp_path / "layout/blobs" / index.replace(":", "/")).read_text())
    server.spoil["manifest"] = json.dumps({**manifest, "manifests": [], **change}).encode()
    with pytest.raises(ImageFault, match="both a manifest and a list"):
        await puller.pull(f"{server.address}/a")


async def test_lists_of_lists(server: Server, puller: Puller) -> None:
    """A list that names a list, itself for example, is no image; nobody follows it for ever."""
    entry = {"digest": "sha256:" + "0" * 64, "size": 2, "platform": {"os": "linux", "architecture": machine()}}
    server.spoil["manifest"] = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    with pytest.raises(ImageFault):
        await puller.pull(f"{server.address}/a")
    assert len(server.seen) <= 3


async def test_redirects_in_circles(server: Server, puller: Puller) -> None:
    """A circle ends."""
    server.elsewhere = f"http://{server.address}"
    with pytest.raises(ImageFault, match="circles"):
        await puller.pull(f"{server.address}/a")


async def test_trouble_is_tried_again(server: Server, puller: Puller) -> None:
    """Overload and broken answers are tried again, after as long as the registry asks for."""
    server.failures = [(503, {}), (429, {"Retry-After": "7"}), (500, {})]
    assert await puller.pull(f"{server.address}/a") == WHOLE
    assert SLEPT == [0.5, 7.0, 2.0]
    server.failures = [(429, {"Retry-After": "99999"})] * web.TRIES
    with pytest.raises(EnvironmentFault, match="429") as caught:
        await puller.pull(f"{server.address}/b")
    assert caught.value.retryable
    assert max(SLEPT) == 60.0


async def test_a_cut_connection_is_gone_on_with(server: Server, puller: Puller) -> None:
    """Where a layer breaks off, the rest alone is asked for."""
    server.cut, server.cuts = 300_000, 3
    assert await puller.pull(f"{server.address}/a") == WHOLE
    ranges = [headers["Range"] for path, headers in server.seen if "Range" in headers]
    assert ranges == [f"bytes={count * 300_000}-" for count in (1, 2, 3)]


async def test_a_broken_pull_is_gone_on_with_later(server: Server, puller: Puller) -> None:
    """What came before a registry died is there for the next pull."""
    server.cut, server.cuts = 150_000, web.TRIES
    with pytest.raises(EnvironmentFault, match="broke off a layer at 750000"):
        await puller.pull(f"{server.address}/a")
    assert [path.stat().st_size for path in puller.parts()] == [750_000]
    assert await puller.pull(f"{server.address}/a") == WHOLE
    assert server.seen[-1][1]["Range"] == "bytes=750000-"
    assert puller.parts() == []


async def test_a_pull_that_is_given_up(server: Server, puller: Puller) -> None:
    """Who closes the images ends what is being fetched."""
    puller.images.containers.stop()
    with pytest.raises(EnvironmentFault, match="given up"):
        await puller.pull(f"{server.address}/a")


async def test_a_registry_without_ranges(server: Server, puller: Puller) -> None:
    """One that sends all again is taken from the start."""
    server.cut, server.cuts, server.ranges = 300_000, 1, False
    assert await puller.pull(f"{server.address}/a") == WHOLE


async def test_damage_is_not_kept(server: Server, puller: Puller) -> None:
    """A layer that is something else, shorter or longer is refused, and not gone on with."""
    layer = server_layer(server)
    whole = (server.layout / "blobs" / layer.replace(":", "/")).read_bytes()
    for spoiled, why in ((b"x" + whole[1:], "something else"), (whole + b"x" * 10, "more of a layer|something else")):
        server.spoil[layer] = spoiled
        with pytest.raises(ImageFault, match=why):
            await puller.pull(f"{server.address}/a")
        assert puller.parts() == []
    server.spoil[layer] = whole[:1000]
    with pytest.raises(WoodshedError, match="broke off"):
        await puller.pull(f"{server.address}/a")
    server.spoil.clear()
    (puller.images.layers.root / ".blobs" / f"{layer[7:]}.part").write_bytes(b"y" * 2000)  # of no pull of ours
    with pytest.raises(ImageFault, match="something else"):
        await puller.pull(f"{server.address}/a")
    assert await puller.pull(f"{server.address}/a") == WHOLE


async def test_what_is_not_there(server: Server, puller: Puller) -> None:
    """An unknown tag is no such image; a host that is none cannot be reached."""
    with pytest.raises(ImageFault, match="has no such image"):
        await puller.pull(f"{server.address}/a:gone")
    server.stop()
    with pytest.raises(EnvironmentFault, match="cannot be reached"):
        await puller.pull(f"{server.address}/a")


async def test_too_large_documents(server: Server, puller: Puller) -> None:
    """A manifest without end is not read to its end."""
    server.spoil["manifest"] = b" " * (5 << 20)
    with pytest.raises(ImageFault, match="more than"):
        await puller.pull(f"{server.address}/a")


async def test_a_mirror_goes_first(server: Server, puller: Puller, monkeypatch: pytest.MonkeyPatch) -> None:
    """For Docker Hub a mirror is asked first; the name stays the Hub's."""
    monkeypatch.setenv("WOODSHED_REGISTRY_MIRROR", f"http://{server.address}/")
    assert await puller.pull("a") == WHOLE
    assert server.seen[0][0] == "/v2/library/a/manifests/latest"
    assert puller.images.containers.shelf.all()[0].name == "docker.io/library/a:latest"
    monkeypatch.setenv("WOODSHED_REGISTRY_MIRROR", "http://mirror.example")
    with pytest.raises(UsageError, match="without TLS"):
        await puller.pull("b")


async def test_a_mirror_that_has_it_not(server: Server, puller: Puller, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mirror lacks the registry itself is asked for."""
    mirror = Server(server.layout / "nothing")
    try:
        monkeypatch.setenv("WOODSHED_REGISTRY_MIRROR", mirror.address)
        monkeypatch.setattr(registry, "HUB", server.address)
        mirror.failures = [(404, {})] * 50
        assert await puller.pull(f"{server.address}/a") == WHOLE
        assert mirror.seen
    finally:
        mirror.stop()


@pytest.mark.parametrize(("host", "plain"), [
    ("localhost", True), ("localhost:5000", True), ("127.0.0.1:5000", True), ("[::1]:5000", True),
    ("registry.example", False), ("registry.example:80", False), ("10.0.0.1:5000", False), ("localhost.example", False),
    ("plain.example:5000", True), ("plain.example", False), ("127.0.0.1.example", False),
])
def test_plain_http_is_for_this_machine(host: str, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TLS only this machine is spoken to, and what a setting names."""
    monkeypatch.setenv("WOODSHED_REGISTRY_HTTP", "plain.example:5000, other.example")
    assert web.base_of(host).startswith("http://") is plain


async def test_a_real_registry(puller: Puller, tmp_path: Path) -> None:
    """docker-registry, filled by skopeo: pulled by tag and by digest."""
    oci.layout(tmp_path / "l", LAYER)
    with worlds.registry(tmp_path / "registry") as address:
        worlds.push(tmp_path / "l", address, "some/thing:1")
        assert await puller.pull(f"{address}/some/thing:1") == WHOLE
        with pytest.raises(ImageFault, match="no such image"):
            await puller.pull(f"{address}/some/thing:2")
