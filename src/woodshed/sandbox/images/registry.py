"""Images of registries: manifest, configuration and layers, each checked against its digest.

A layer arrives in ``HOME/layers/.blobs/<sha256>.part``; where a pull broke off, the next goes on from there.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from woodshed.errors import EnvironmentFault, ImageFault, UsageError
from woodshed.sandbox.images import oci
from woodshed.sandbox.images.container import most_bytes
from woodshed.sandbox.images.layers import Layers
from woodshed.sandbox.images.oci import Descriptor, Found
from woodshed.sandbox.images.reference import HUB, Reference
from woodshed.sandbox.images.web import TRIES, Patience, Refused, Web, base_of, check, taken
from woodshed.settings import setting

T = TypeVar("T")
_CHUNK = 1 << 18
_STALE_S = 7 * 86400


class Registry:
    """The image ``reference`` of its registry, or of the mirror that is set for docker.io."""

    def __init__(self, reference: Reference, layers: Layers, stopped: threading.Event) -> None:
        """``stopped`` ends what is being fetched. Raises UsageError for damaged logins or a mirror that is none."""
        self.name, self._reference, self._stopped = str(reference), reference, stopped
        self._blobs = layers.root / ".blobs"
        self._blobs.mkdir(mode=0o700, exist_ok=True)
        scope = f"repository:{reference.repository}:pull"
        self._webs = [Web(base_of(reference.host), reference.registry, scope)]
        mirror = setting("registry_mirror").rstrip("/")
        if mirror and reference.registry == HUB:
            address = mirror if "://" in mirror else base_of(mirror)
            try:
                check(address)
            except Refused as refused:
                raise UsageError(str(refused), field="WOODSHED_REGISTRY_MIRROR") from None
            self._webs.insert(0, Web(address, address.partition("://")[2], scope))

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        """Blobs that nobody went on with for a week go; those of this pull went when they were unpacked."""
        for path in self._blobs.glob("*"):
            with suppress(OSError):
                if path.stat().st_mtime < time.time() - _STALE_S:
                    path.unlink()

    def find(self) -> Found:
        """Its manifest for this machine, and its configuration. Raises ImageFault, EnvironmentFault."""
        data = self._manifest(self._reference.wanted)
        if self._reference.digest:
            oci.check(data, self._reference.digest, self.name)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        value = oci.document(data, self.name)
        if oci.is_index(value):
            chosen = oci.choose(value, self.name)
            digest = chosen.digest
            value = oci.document(oci.check(self._manifest(digest), digest, self.name), self.name)
        config, layers = oci.layers(value, self.name)
        settings = oci.check(self._small(f"blobs/{config.digest}", {}), config.digest, self.name)
        inner, diff_ids = oci.configuration(settings, len(layers), self.name)
        return Found(inner, layers, diff_ids, digest)

    def _manifest(self, wanted: str) -> bytes:
        return self._small(f"manifests/{wanted}", {"Accept": ", ".join(oci.ACCEPT)})

    def _small(self, path: str, headers: dict[str, str]) -> bytes:
        def read(web: Web) -> bytes:
            try:
                with closing(web.open(self._path(path), headers)) as answer:
                    data = taken(answer, oci.MAX_DOCUMENT + 1)
            except (OSError, http.client.HTTPException) as error:
                raise EnvironmentFault(f"{self.name}: the registry broke off: {error}") from error
            if len(data) > oci.MAX_DOCUMENT:
                raise ImageFault(f"{self.name}: a manifest or configuration of more than {oci.MAX_DOCUMENT} bytes")
            return data

        return self._asking(read)

    def _path(self, path: str) -> str:
        return f"/v2/{self._reference.repository}/{path}"

    def _asking(self, ask: Callable[[Web], T]) -> T:
        """The mirror first; what it does not have, or where it is away, the registry itself."""
        for web in self._webs[:-1]:
            with suppress(Refused, EnvironmentFault, OSError):
                return ask(web)
        web = self._webs[-1]
        try:
            return ask(web)
        except Refused as refused:
            if refused.status in (401, 403):
                raise ImageFault(f"{self.name}: {self._reference.registry} does not let us have it, or has no such "
                                 f"image: {web.denied()}") from None
            if refused.status == 404:
                raise ImageFault(f"{self.name}: {self._reference.registry} has no such image") from None
            raise ImageFault(f"{self.name}: {self._reference.registry}: {refused}") from None

    # -- layers --------------------------------------------------------------------------------------------------------

    def open(self, layer: Descriptor) -> BinaryIO:
        """The whole stored layer, its digest checked; the file is gone when it is closed.

        Raises ImageFault, EnvironmentFault.
        """
        if layer.size > most_bytes():
            raise ImageFault(f"{self.name}: a layer of {layer.size >> 20} MB is larger than allowed (setting image_mb)")
        path = self._blobs / f"{layer.digest.removeprefix('sha256:')}.part"
        fd = _locked(path)
        file = os.fdopen(fd, "r+b")
        try:
            for _ in range(TRIES):
                before = file.seek(0, os.SEEK_END)
                self._asking(lambda web: self._more(web, layer, file))
                if file.seek(0, os.SEEK_END) >= layer.size or file.tell() == before:
                    break
            self._check(layer, file)
            path.unlink(missing_ok=True)
            file.seek(0)
            return file
        except ImageFault:
            path.unlink(missing_ok=True)  # what is wrong is not gone on with
            file.close()
            raise
        except BaseException:
            file.close()
            raise

    def _more(self, web: Web, layer: Descriptor, file: BinaryIO) -> None:
        """Fetch what is missing, as far as the connection holds."""
        have = file.seek(0, os.SEEK_END)
        if have > layer.size:
            have = file.truncate(0)
        if have == layer.size:
            return
        headers = {"Range": f"bytes={have}-"} if have else {}
        try:
            answer = web.open(self._path(f"blobs/{layer.digest}"), headers)
        except Refused as refused:
            if refused.status != 416 or not have:
                raise
            file.truncate(0)
            answer = web.open(self._path(f"blobs/{layer.digest}"), {})
        with closing(answer):
            if have and (answer.status != 206 or not _begins(answer.headers.get("Content-Range"), have)):
                if answer.status == 206:
                    raise ImageFault(f"{self.name}: the registry sends another part of a layer than it was asked for")
                have = file.truncate(0)
            file.seek(have)
            with suppress(OSError, http.client.HTTPException):  # cut off: the next try goes on from here
                self._take(answer, file, layer.size - have)

    def _take(self, answer: Any, file: BinaryIO, most: int) -> None:
        patience = Patience()
        while data := answer.read1(min(_CHUNK, most + 1)):
            patience.came(len(data))
            if self._stopped.is_set():
                raise EnvironmentFault(f"{self.name}: the pull was given up")
            if len(data) > most:
                raise ImageFault(f"{self.name}: the registry sends more of a layer than its manifest says")
            try:
                file.write(data)
                file.flush()
            except OSError as error:
                raise EnvironmentFault(f"{self.name}: a layer cannot be kept: {error.strerror}") from error
            most -= len(data)
            if most == 0:
                return

    def _check(self, layer: Descriptor, file: BinaryIO) -> None:
        size = file.seek(0, os.SEEK_END)
        if size < layer.size:
            raise EnvironmentFault(f"{self.name}: the registry broke off a layer at {size} of {layer.size} bytes")
        file.seek(0)
        total = hashlib.sha256()
        while data := file.read(_CHUNK):
            total.update(data)
        if size != layer.size or f"sha256:{total.hexdigest()}" != layer.digest:
            raise ImageFault(f"{self.name}: what came as {layer.digest} is something else")


def _begins(told: str | None, at: int) -> bool:
    return (told or "").startswith(f"bytes {at}-")


def _locked(path: Path) -> int:
    """The file at ``path``, ours alone as long as it is open."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)  # somebody finished with it meanwhile
