"""Images made by hand: layers from entries, layouts and archives from layers."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import struct
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woodshed.dockerfile.stages import machine

BUSYBOX = Path("/usr/bin/busybox") if Path("/usr/bin/busybox").exists() else Path("/bin/busybox")
NO_BUSYBOX = "needs a static busybox (apt-get install busybox-static)"


def has_busybox() -> bool:
    """Whether there is one, and it needs no loader of the host's."""
    if not BUSYBOX.exists():
        return False
    data = BUSYBOX.read_bytes()
    at, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)  # ELF64 headers
    return all(struct.unpack_from("<I", data, at + size * number)[0] != 3 for number in range(count))  # PT_INTERP


@dataclass(frozen=True)
class E:
    """One member of a layer. ``content`` of a file; ``to`` of a link."""

    name: str
    kind: str = "file"
    content: bytes = b""
    to: str = ""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    pax: Mapping[str, str] | None = None


_KINDS = {"file": tarfile.REGTYPE, "dir": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE,
          "char": tarfile.CHRTYPE, "block": tarfile.BLKTYPE, "fifo": tarfile.FIFOTYPE}


def layer(*entries: E) -> bytes:
    """A plain tar of ``entries``, exactly as they are: nothing is made safe."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.type, info.mode, info.uid, info.gid = _KINDS[entry.kind], entry.mode, entry.uid, entry.gid
            info.size, info.linkname, info.mtime = len(entry.content), entry.to, 1_700_000_000
            if entry.kind in ("char", "block"):
                info.devmajor, info.devminor = 1, 3
            info.pax_headers = dict(entry.pax or {})
            archive.addfile(info, io.BytesIO(entry.content) if entry.kind == "file" else None)
    return out.getvalue()


def directory(name: str, mode: int = 0o755, uid: int = 0) -> E:
    return E(name, "dir", mode=mode, uid=uid, gid=uid)


def busybox_layer() -> bytes:
    """A root file system with a shell: a static busybox and its names."""
    names = ("sh", "cat", "ls", "mkdir", "rm", "echo", "env", "id", "stat", "chown", "chmod", "touch", "ln", "pwd",
             "test", "cp", "mv", "sleep", "grep", "true", "false", "printf", "find", "readlink", "wc", "sort", "head")
    return layer(
        directory("bin"), directory("etc"), directory("root", 0o700), directory("tmp", 0o1777), directory("proc"),
        directory("dev"), directory("usr"), directory("usr/bin"),
        E("bin/busybox", content=BUSYBOX.read_bytes(), mode=0o755),
        *(E(f"bin/{name}", "link", to="busybox") for name in names),
        E("etc/passwd", content=b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"),
        E("etc/group", content=b"root:x:0:\napp:x:1000:\nstaff:x:50:app\n"),
    )


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def config(tars: Sequence[bytes], inner: Mapping[str, Any] | None = None, **more: Any) -> bytes:
    return json.dumps({
        "architecture": machine(), "os": "linux", "config": dict(inner or {}),
        "rootfs": {"type": "layers", "diff_ids": [_digest(tar) for tar in tars]}, **more,
    }).encode()


class Layout:
    """An OCI layout in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs/sha256").mkdir(parents=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self.entries: list[dict[str, Any]] = []

    def blob(self, data: bytes, kind: str = "application/octet-stream") -> dict[str, Any]:
        digest = _digest(data)
        (self.folder / "blobs" / digest.replace(":", "/")).write_bytes(data)
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    def image(
        self, tars: Sequence[bytes], inner: Mapping[str, Any] | None = None, *, tag: str = "latest",
        pack: str = "gzip", settings: bytes | None = None,
    ) -> dict[str, Any]:
        """Add an image of plain ``tars``, lowest first; its descriptor."""
        stored = [self.blob(compress(tar, pack), f"application/vnd.oci.image.layer.v1.tar+{pack}") for tar in tars]
        settings = settings or config(tars, inner)
        manifest = json.dumps({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": self.blob(settings, "application/vnd.oci.image.config.v1+json"), "layers": stored,
        }).encode()
        return self.add(self.blob(manifest, "application/vnd.oci.image.manifest.v1+json"), tag)

    def add(self, entry: dict[str, Any], tag: str) -> dict[str, Any]:
        self.entries.append({**entry, "annotations": {"org.opencontainers.image.ref.name": tag}})
        (self.folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": self.entries}))
        return entry


def compress(tar: bytes, pack: str) -> bytes:
    if pack == "gzip":
        return gzip.compress(tar, 6, mtime=0)
    if pack == "zstd":
        import zstandard

        return bytes(zstandard.compress(tar))
    return tar


def layout(folder: Path, *tars: bytes, inner: Mapping[str, Any] | None = None, pack: str = "gzip") -> str:
    """The image name of a new layout with one image."""
    Layout(folder).image(tars, inner, pack=pack)
    return f"oci:{folder}"


def tarball(folder: Path, path: Path) -> Path:
    """``folder`` as one tar."""
    with tarfile.open(path, "w") as archive:
        archive.add(folder, arcname=".")
    return path


def saved(path: Path, *tars: bytes, inner: Mapping[str, Any] | None = None, tag: str = "made:latest") -> Path:
    """An archive as ``docker save`` writes it."""
    folder = path.with_suffix(".d")
    folder.mkdir()
    settings = config(tars, inner)
    name = hashlib.sha256(settings).hexdigest() + ".json"
    (folder / name).write_bytes(settings)
    paths = []
    for tar in tars:
        ident = hashlib.sha256(tar).hexdigest()
        (folder / ident).mkdir(exist_ok=True)
        (folder / ident / "layer.tar").write_bytes(tar)
        paths.append(f"{ident}/layer.tar")
    (folder / "manifest.json").write_text(json.dumps([{"Config": name, "RepoTags": [tag], "Layers": paths}]))
    tarball(folder, path)
    shutil.rmtree(folder)
    return path
