"""Images of containers: a list of layers and a configuration, kept by the digest of both, and by name.

::

    HOME/layers/.notes/image-<id>.json   layers (topmost first) and configuration; ``id`` is the sha256 of these
    HOME/layers/.notes/name-<key>.json   what a name stands for here, and since when
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from woodshed.errors import EnvironmentFault, ImageFault, UsageError
from woodshed.sandbox.images import directory, inflate
from woodshed.sandbox.images.crossing import Crossing
from woodshed.sandbox.images.layers import Layers
from woodshed.sandbox.images.oci import Config, Descriptor, Source
from woodshed.sandbox.images.requirement import key
from woodshed.sandbox.images.tree import Entry, Plan, place
from woodshed.sandbox.images.unpack import unpack_layer
from woodshed.sandbox.images.view import View
from woodshed.sandbox.native.below import is_opaque
from woodshed.sandbox.native.ids import privileged
from woodshed.sandbox.native.inside import frames
from woodshed.settings import setting

FORMAT = "1"
"""Raised whenever the same layer must give another directory."""
_AT_ONCE = 4
Tell = Callable[[str], None]
"""Told what is being done, a line at a time."""


@dataclass(frozen=True, slots=True)
class Image:
    """``layers`` are names of the layer store, topmost first."""

    layers: tuple[str, ...]
    config: Config

    @property
    def id(self) -> str:
        """The sha256 of layers and configuration."""
        return hashlib.sha256(json.dumps(self.record(), sort_keys=True).encode()).hexdigest()

    def record(self) -> dict[str, object]:
        """As JSON holds it."""
        return {"layers": list(self.layers), "config": self.config.record()}


@dataclass(frozen=True, slots=True)
class Named:
    """What a name stands for on this machine. ``complete``: all its layers are here. ``size`` in bytes."""

    name: str
    id: str
    at: float
    complete: bool
    size: int


class Shelf:
    """The images of one layer store."""

    def __init__(self, layers: Layers) -> None:
        self.layers = layers

    def keep(self, image: Image, name: str = "") -> str:
        """Keep ``image``, under ``name`` where one is given; its id."""
        self.layers.set_note(f"image-{image.id}", image.record())
        if name:
            self.layers.set_note(_name_key(name), {"name": name, "id": image.id, "at": time.time()})
        return image.id

    def get(self, ident: str) -> Image | None:
        """The image of that id, its layers marked as used now; None where it or one of them is gone."""
        image = self._read(ident)
        if image is None or not all(self.layers.find(layer) for layer in image.layers):
            return None
        return image

    def named(self, name: str) -> Image | None:
        """The image of that name, when it is whole."""
        note = self.layers.note(_name_key(name))
        return self.get(str(note.get("id"))) if isinstance(note, dict) else None

    def all(self) -> list[Named]:
        """Every name."""
        sizes, found = self.layers.sizes(), []
        for path in sorted((self.layers.root / ".notes").glob("name-*.json")):
            note = self.layers.note(path.stem)
            if not isinstance(note, dict):
                continue
            image = self._read(str(note.get("id")))
            names = image.layers if image else ()
            found.append(Named(
                str(note.get("name")), str(note.get("id")), float(note.get("at", 0)),
                image is not None and all(layer in sizes for layer in names), sum(sizes.get(one, 0) for one in names)))
        return sorted(found, key=lambda one: one.name)

    def forget_incomplete(self) -> list[str]:
        """Forget the images of which layers are gone; their names."""
        gone = [one for one in self.all() if not one.complete]
        for one in gone:
            (self.layers.root / ".notes" / f"{_name_key(one.name)}.json").unlink(missing_ok=True)
        for path in (self.layers.root / ".notes").glob("image-*.json"):
            image = self._read(path.stem.removeprefix("image-"))
            if image is None or not all(self.layers.path(layer).is_dir() for layer in image.layers):
                path.unlink(missing_ok=True)
        return [one.name for one in gone]

    def _read(self, ident: str) -> Image | None:
        if len(ident) != 64 or set(ident) - set("0123456789abcdef"):
            return None
        note = self.layers.note(f"image-{ident}")
        try:
            return Image(tuple(note["layers"]), Config.of_record(note["config"])) if isinstance(note, dict) else None
        except (KeyError, TypeError):
            return None


def _name_key(name: str) -> str:
    return f"name-{hashlib.sha256(name.encode()).hexdigest()}"


def most_bytes() -> int:
    """The setting ``image_mb`` in bytes. Raises UsageError."""
    text = setting("image_mb")
    if not text.isdigit() or not 0 < int(text) < 1 << 40:
        raise UsageError(f"{text!r} is no number of megabytes", field="WOODSHED_IMAGE_MB")
    return int(text) << 20


def take_in(source: Source, layers: Layers, crossing: Crossing | None, tell: Tell | None = None) -> Image:
    """The image of ``source``, each of its layers unpacked unless it is here already. Blocking.

    Raises UsageError, ImageFault, EnvironmentFault.
    """
    found = source.find()
    wanted = dict(zip(found.diff_ids, found.layers, strict=True))  # a layer may come twice
    _at_once([partial(_layer, source, layer, diff_id, layers, crossing, tell) for diff_id, layer in wanted.items()])
    return Image(_seen([layer_name(diff_id) for diff_id in reversed(found.diff_ids)], layers), found.config)


def _seen(names: Sequence[str], layers: Layers) -> tuple[str, ...]:
    """Of layers, topmost first, those that can be seen: one may hide all below it, as no overlay's root can."""
    end = next((count for count, name in enumerate(names, 1) if is_opaque(str(layers.path(name)))), len(names))
    return tuple(names[:end])


def _at_once(jobs: Sequence[Callable[[], None]]) -> None:
    """Do ``jobs``, a few at a time; raises what the first that failed raised, and begins no other then.

    In threads that do not hold up the end of the process, as an executor's would: a job may wait for a network.
    """
    waiting, failed = list(reversed(jobs)), list[BaseException]()

    def work() -> None:
        while not failed:
            try:
                job = waiting.pop()
            except IndexError:
                return
            try:
                job()
            except BaseException as error:
                failed.append(error)

    threads = [threading.Thread(target=work, name="woodshed-layers", daemon=True) for _ in jobs[:_AT_ONCE]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def layer_name(diff_id: str) -> str:
    """The layer store's name of the layer whose plain tar has that sha256. Owners are kept by root's engine alone."""
    return key(FORMAT, "layer", diff_id, "owners" if privileged() else "one owner")


def _layer(
    source: Source, layer: Descriptor, diff_id: str, layers: Layers, crossing: Crossing | None, tell: Tell | None
) -> None:
    def fill(into: Path) -> None:
        if crossing is None:
            raise EnvironmentFault(f"{source.name}: a layer is to be unpacked, and there is no sandbox to do it in")
        if tell is not None:
            size = f" ({layer.size / 1e6:.1f} MB)" if layer.size >= 0 else ""
            tell(f"{source.name}: layer {diff_id[7:19]}{size}")
        with source.open(layer) as stored:
            def feed(write: frames.Write) -> None:
                for data in inflate.plain(stored, layer, diff_id, most, source.name):
                    write(data)

            notes = crossing(lambda engine: unpack_layer(engine, feed, into, most=most, name=source.name))
        for note in notes if tell is not None else ():
            tell(f"{source.name}: left out: {note}")  # type: ignore[misc]  # not None, as the line above says

    most = most_bytes()
    layers.make(layer_name(diff_id), fill)


def mount_points(lowers: Sequence[Path]) -> Plan:
    """What a sandbox mounts on and ``lowers`` lack. Raises ImageFault where something else stands there."""
    view, plan = View(lowers), Plan()
    for name, mode in directory.MOUNT_POINTS.items():
        if view.is_directory(f"/{name}"):
            continue
        if view.stat(f"/{name}") is not None or view.land(f"/{name}") != f"/{name}":
            raise ImageFault(f"/{name} of the image is no directory, so nothing can be mounted there")
        place(plan, name, Entry("directory", mode))
    return plan


def shell(lowers: Sequence[Path]) -> str:
    """``/bin/bash`` where there is one, else ``/bin/sh``."""
    return "/bin/bash" if View(lowers).is_file("/bin/bash") else "/bin/sh"
