"""Manifests and configurations of images, read from an OCI layout (folder or tar) or an archive of ``docker save``.

Formats: OCI Image Format Specification 1.1 (image-layout, index, manifest, config), Docker's image manifest version 2
schema 2, and the ``manifest.json`` of Docker's image tarballs. Everything read is hostile: sizes are bounded, names
never become paths of the host, and what has a digest is checked against it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import posixpath
import stat
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Protocol, cast

from woodshed.dockerfile.stages import machine
from woodshed.errors import ImageFault, UsageError
from woodshed.sandbox.images.reference import DIGEST

MAX_DOCUMENT = 4 << 20
"""Bytes of a manifest or configuration: the distribution specification asks registries to take that many."""
MAX_LAYERS = 120
"""Of one image; Docker's own bound is 127, and ours leaves room for what lies above."""
_MAX_MEMBERS = 100_000
_INDEX = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFEST = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
ACCEPT = (*_INDEX, *_MANIFEST)
_AMBIGUOUS = "one document is both a manifest and a list of them, and means another image to others (CVE-2021-41190)"
_REF_NAME = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What names a blob. In an archive of ``docker save`` a layer has a ``path`` instead of a digest."""

    digest: str
    size: int
    media_type: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Config:
    """What an image says of how it is to be run."""

    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""
    shell: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """As JSON holds it; :meth:`of_record` takes it back."""
        return asdict(self)

    @classmethod
    def of_record(cls, value: Mapping[str, Any]) -> Config:
        """From :meth:`record`. Raises TypeError, KeyError for another shape."""
        lists = {name: tuple(value[name]) for name in ("shell", "entrypoint", "cmd")}
        return cls(dict(value["env"]), value["workdir"], value["user"], labels=dict(value["labels"]), **lists)


@dataclass(frozen=True, slots=True)
class Found:
    """An image as its source describes it: layers lowest first, each with the sha256 of its plain tar (diffID)."""

    config: Config
    layers: tuple[Descriptor, ...]
    diff_ids: tuple[str, ...]
    digest: str


class Source(Protocol):
    """Where an image's documents and layers come from."""

    name: str

    def find(self) -> Found:
        """What it holds for this machine. Raises UsageError, ImageFault, EnvironmentFault."""

    def open(self, layer: Descriptor) -> BinaryIO:
        """A layer's bytes as stored, not checked yet."""


def broken(name: str, why: str) -> NoReturn:
    """Raise the ImageFault that names the image."""
    raise ImageFault(f"{name}: {why}")


# -- documents ---------------------------------------------------------------------------------------------------------


def document(data: bytes, name: str) -> dict[str, Any]:
    """The JSON object in ``data``. Raises ImageFault."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        broken(name, "a manifest or configuration is no JSON")
    if not isinstance(value, dict):
        broken(name, "a manifest or configuration is no JSON object")
    return value


def check(data: bytes, digest: str, name: str) -> bytes:
    """``data``, when its sha256 is ``digest``. Raises ImageFault."""
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        broken(name, f"what came as {digest} is something else")
    return data


def descriptor(value: object, name: str) -> Descriptor:
    """One descriptor of a manifest or index. Raises ImageFault."""
    if not isinstance(value, dict):
        broken(name, "a descriptor is no JSON object")
    digest, size, kind = value.get("digest"), value.get("size"), value.get("mediaType", "")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        broken(name, "a descriptor has no sha256 digest")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0 or not isinstance(kind, str):
        broken(name, "a descriptor has no size or a wrong type")
    return Descriptor(digest, size, kind)


def is_index(value: Mapping[str, Any]) -> bool:
    """Whether a document lists manifests, one for each platform."""
    return value.get("mediaType") in _INDEX or ("manifests" in value and "layers" not in value)


def choose(index: Mapping[str, Any], name: str) -> Descriptor:
    """The manifest for this machine. Raises ImageFault naming what there is."""
    if "layers" in index or "config" in index:
        broken(name, _AMBIGUOUS)
    seen = []
    for entry in _list(index, "manifests", name):
        platform = entry.get("platform") if isinstance(entry, dict) else None
        if not isinstance(platform, dict):
            platform = {}
        told = f"{platform.get('os', '?')}/{platform.get('architecture', '?')}"
        if told == f"linux/{machine()}":
            return descriptor(entry, name)
        seen.append(told)
    only = _list(index, "manifests", name)
    if len(only) == 1 and seen == ["?/?"]:
        return descriptor(only[0], name)
    broken(name, f"there is no image of it for linux/{machine()} (there is {', '.join(seen[:10]) or 'nothing'})")


def layers(manifest: Mapping[str, Any], name: str) -> tuple[Descriptor, tuple[Descriptor, ...]]:
    """The configuration and the layers that a manifest names. Raises ImageFault."""
    if "manifests" in manifest:
        broken(name, _AMBIGUOUS)
    if manifest.get("schemaVersion") == 1 or "fsLayers" in manifest:
        broken(name, "its manifest has Docker's schema 1, which nothing writes any more; push it again")
    found = tuple(descriptor(entry, name) for entry in _list(manifest, "layers", name))
    if len(found) > MAX_LAYERS:
        broken(name, f"it has {len(found)} layers; at most {MAX_LAYERS} are taken")
    return descriptor(manifest.get("config"), name), found


def configuration(data: bytes, count: int, name: str) -> tuple[Config, tuple[str, ...]]:
    """The configuration in ``data``, and the diffIDs of its ``count`` layers. Raises ImageFault."""
    value = document(data, name)
    system, architecture = value.get("os", "linux"), value.get("architecture", machine())
    if (system, architecture) != ("linux", machine()):
        broken(name, f"it is for {system}/{architecture}, and this machine is linux/{machine()}")
    rootfs = value.get("rootfs")
    ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(ids, list) or not all(isinstance(one, str) and DIGEST.fullmatch(one) for one in ids):
        broken(name, "its configuration has no sha256 of its layers")
    if len(ids) != count:
        broken(name, f"its configuration tells of {len(ids)} layers, its manifest of {count}")
    inner = value.get("config") or {}
    if not isinstance(inner, dict):
        broken(name, "its configuration is none")
    if not _encodable(inner):
        broken(name, "its configuration holds characters that are none")
    env = dict(word.split("=", 1) for word in _words(inner, "Env", name) if "=" in word and not word.startswith("="))
    labels = inner.get("Labels")
    return Config(
        env={key: text for key, text in env.items() if "\0" not in key + text},
        workdir="/" + posixpath.normpath("/" + _text(inner, "WorkingDir")).lstrip("/"), user=_text(inner, "User"),
        shell=tuple(_words(inner, "Shell", name)), entrypoint=tuple(_words(inner, "Entrypoint", name)),
        cmd=tuple(_words(inner, "Cmd", name)),
        labels={str(key): str(text) for key, text in labels.items()} if isinstance(labels, dict) else {},
    ), tuple(ids)


def _encodable(value: Mapping[str, Any]) -> bool:
    """Whether its strings can be written: JSON can name halves of characters."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


def _text(value: Mapping[str, Any], key: str) -> str:
    text = value.get(key)
    return text if isinstance(text, str) and "\0" not in text else ""


def _words(value: Mapping[str, Any], key: str, name: str) -> list[str]:
    found = value.get(key) or []
    if isinstance(found, str):
        return [found]
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        broken(name, f"its configuration's {key} is no list of strings")
    return found


def _list(value: Mapping[str, Any], key: str, name: str) -> list[Any]:
    found = value.get(key)
    if not isinstance(found, list):
        broken(name, f"its manifest has no {key}")
    return found


# -- where files lie ---------------------------------------------------------------------------------------------------


class Files(Protocol):
    """Files by name."""

    def open(self, name: str) -> BinaryIO | None:
        """A regular file; None where there is none."""


class Folder:
    """The files below a folder of the host."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, name: str) -> BinaryIO | None:
        """A regular file; links are not followed."""
        parts = name.split("/")
        if not set(parts).isdisjoint(("", ".", "..")) or "\0" in name:
            return None  # a manifest's own words: they name nothing outside
        with suppress(OSError):
            path = self._root.joinpath(*parts)
            if os.path.realpath(path.parent) == os.path.join(os.path.realpath(self._root), *parts[:-1]):  # noqa: PTH118
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    return os.fdopen(fd, "rb")
                os.close(fd)
        return None


class Tarball:
    """The files in a plain tar of the host, found by one look at its headers; nothing is unpacked."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError where it is no tar."""
        self._path = path
        self._at: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        try:
            with path.open("rb") as file, tarfile.open(fileobj=cast(Any, _Cautious(file)), mode="r:") as archive:
                for count, entry in enumerate(archive):
                    archive.members.clear()  # type: ignore[attr-defined]  # typeshed leaves it out
                    if count > _MAX_MEMBERS:
                        raise UsageError(f"has more than {_MAX_MEMBERS} members", file=path)
                    name = entry.name.removeprefix("./")
                    if entry.isreg() and entry.sparse is None:
                        self._at[name] = entry.offset_data, entry.size
                    elif entry.issym() or entry.islnk():
                        self._links[name] = _beside(name, entry.linkname) if entry.issym() else entry.linkname
        except (tarfile.TarError, ValueError, EOFError, OverflowError, RecursionError):
            raise UsageError("is no plain tar archive", file=path,
                             remedy="Decompress it first, where it is compressed.") from None

    def open(self, name: str) -> BinaryIO | None:
        """A regular member, or what one link leads to."""
        place = self._at.get(name) or self._at.get(self._links.get(name, ""))
        return cast(BinaryIO, io.BufferedReader(_Part(self._path, *place))) if place else None


def _beside(name: str, target: str) -> str:
    """What a link in an archive leads to: old archives of Docker say ``../ID/layer.tar``."""
    parts = name.split("/")[:-1]
    for part in target.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


class _Cautious:
    """A file that hands out at most a header's worth: ``tarfile`` believes what a header says of its own size."""

    def __init__(self, file: BinaryIO) -> None:
        self.tell, self.seek, self._file = file.tell, file.seek, file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= 1 << 20:
            raise ValueError("a header is too large")
        return self._file.read(size)


class _Part(io.RawIOBase):
    """A stretch of a file."""

    def __init__(self, path: Path, at: int, size: int) -> None:
        self._file, self._left = path.open("rb"), size
        self._file.seek(at)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._file.read(min(len(buffer), self._left))
        buffer[:len(data)] = data
        self._left -= len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


# -- layouts and archives ----------------------------------------------------------------------------------------------


def read_all(files: Files, name: str, image: str) -> bytes:
    """A small file. Raises ImageFault where it is missing or too large."""
    opened = files.open(name)
    if opened is None:
        broken(image, f"{name} is missing")
    with opened:
        data = opened.read(MAX_DOCUMENT + 1)
    if len(data) > MAX_DOCUMENT:
        broken(image, f"{name} is larger than {MAX_DOCUMENT} bytes")
    return data


class Layout:
    """An OCI layout: blobs by digest, and an index that names images."""

    def __init__(self, files: Files, name: str, tag: str) -> None:
        self.name, self._files, self._tag = name, files, tag

    def find(self) -> Found:
        """The image ``tag``; without one the only image, or that called latest. Raises UsageError, ImageFault."""
        top = document(read_all(self._files, "index.json", self.name), self.name)
        chosen = self._named(_list(top, "manifests", self.name))
        value = self._blob(chosen)
        for _ in range(2):
            if not is_index(value):
                break
            chosen = choose(value, self.name)
            value = self._blob(chosen)
        config, found = layers(value, self.name)
        data = check(read_all(self._files, _blob(config), self.name), config.digest, self.name)
        settings, ids = configuration(data, len(found), self.name)
        return Found(settings, found, ids, chosen.digest)

    def open(self, layer: Descriptor) -> BinaryIO:
        """The stored blob."""
        return self._files.open(_blob(layer)) or broken(self.name, f"the layer {layer.digest} is missing")

    def _blob(self, wanted: Descriptor) -> dict[str, Any]:
        data = read_all(self._files, _blob(wanted), self.name)
        return document(check(data, wanted.digest, self.name), self.name)

    def _named(self, entries: Sequence[Any]) -> Descriptor:
        found: dict[str, Descriptor] = {}
        for entry in entries:
            notes = entry.get("annotations") if isinstance(entry, dict) else None
            name = str(notes.get(_REF_NAME, "")) if isinstance(notes, dict) else ""
            found.setdefault(name, descriptor(entry, self.name))
        if not self._tag and (len(found) == 1 or "latest" in found):
            return found.get("latest") or next(iter(found.values()))
        for name, entry in found.items():
            if self._tag and (name == self._tag or name.endswith(f":{self._tag}")):
                return entry
        known = ", ".join(sorted(filter(None, found))) or "one without a name"
        raise UsageError(f"{self.name} holds no image {self._tag or 'latest'!r}", field="image",
                         remedy=f"It holds {known}: write oci:PATH:TAG.")


def _blob(wanted: Descriptor) -> str:
    return "blobs/" + wanted.digest.replace(":", "/")


class Saved:
    """An archive of ``docker save``."""

    def __init__(self, files: Files, name: str, tag: str) -> None:
        self.name, self._files, self._tag = name, files, tag

    def find(self) -> Found:
        """The image ``tag``, or the only one. Raises UsageError, ImageFault."""
        try:
            listed = json.loads(read_all(self._files, "manifest.json", self.name))
        except (ValueError, RecursionError):
            broken(self.name, "manifest.json is no JSON")
        entry = self._named(listed)
        paths = _words(entry, "Layers", self.name)
        if len(paths) > MAX_LAYERS:
            broken(self.name, f"it has {len(paths)} layers; at most {MAX_LAYERS} are taken")
        data = read_all(self._files, str(entry.get("Config")), self.name)
        settings, ids = configuration(data, len(paths), self.name)
        found = tuple(Descriptor("", -1, path=path) for path in paths)
        return Found(settings, found, ids, f"sha256:{hashlib.sha256(data).hexdigest()}")

    def open(self, layer: Descriptor) -> BinaryIO:
        """The stored layer."""
        return self._files.open(layer.path) or broken(self.name, f"the layer {layer.path} is missing")

    def _named(self, listed: object) -> dict[str, Any]:
        entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        names = {name: entry for entry in entries for name in _words(entry, "RepoTags", self.name)}
        if not self._tag and len(entries) == 1:
            return entries[0]
        for name, entry in names.items():
            if self._tag and (name == self._tag or name.endswith(f":{self._tag}")):
                return entry
        raise UsageError(f"{self.name} holds no image {self._tag or 'alone'!r}", field="image",
                         remedy=f"It holds {', '.join(sorted(names)) or 'none'}: write archive:PATH:TAG.")


def opened(image: str) -> Source:
    """The source that ``oci:PATH[:TAG]`` or ``archive:PATH[:TAG]`` names. Raises UsageError."""
    kind, _, rest = image.partition(":")
    path, tag = _apart(rest)
    if not rest or not path.exists():
        raise UsageError(f"no file or folder {rest!r}", field="image", remedy=f"Write {kind}:PATH or {kind}:PATH:TAG.")
    files: Files = Folder(path) if path.is_dir() else Tarball(path)
    marker = "index.json" if kind == "oci" else "manifest.json"
    if (found := files.open(marker)) is None:
        other = "an OCI layout (oci:)" if kind == "oci" else "an archive of docker save (archive:)"
        raise UsageError(f"has no {marker}, so it is not {other}", file=path, field="image")
    found.close()
    return Layout(files, image, tag) if kind == "oci" else Saved(files, image, tag)


def _apart(text: str) -> tuple[Path, str]:
    """Path and tag: both may hold colons, and the longest path that exists counts."""
    parts = text.split(":")
    for count in range(len(parts), 0, -1):
        if (path := Path(":".join(parts[:count])).expanduser()).exists():
            return path, ":".join(parts[count:])
    return Path(text), ""
