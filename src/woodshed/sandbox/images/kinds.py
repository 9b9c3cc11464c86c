"""What names an image of a container, and how each kind is had.

::

    oci:PATH[:TAG]         an OCI layout, folder or tar
    archive:PATH[:TAG]     an archive of docker save
    dockerfile:PATH        a Dockerfile, or a folder with one: built here
    [docker://]NAME        a name given here, else of a registry: pulled once, and again by `woodshed image pull`
    id:SHA256              an image that is here
"""

from __future__ import annotations

import threading
from pathlib import Path

from woodshed.errors import UsageError
from woodshed.sandbox.images import oci, reference
from woodshed.sandbox.images.container import Image, Shelf, Tell, take_in
from woodshed.sandbox.images.crossing import Crossing
from woodshed.sandbox.images.dockerfile.build import build, build_file
from woodshed.sandbox.images.dockerfile.state import Order
from woodshed.sandbox.images.layers import Layers

ID, BUILDING = "id:", "build:"
"""The second for the sandboxes of a Dockerfile's steps alone."""
_LOCAL = ("oci:", "archive:")
KNOWN = ("Known are host, dir:PATH, oci:PATH[:TAG], archive:PATH[:TAG], dockerfile:PATH, and names of a registry's "
         "images, as python:3.12-slim.")


class Containers:
    """Images of containers in one layer store."""

    def __init__(self, layers: Layers, crossing: Crossing | None) -> None:
        self.shelf, self.layers, self.crossing = Shelf(layers), layers, crossing
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Give up what is being fetched; what came is kept for the next time."""
        self._stopped.set()

    def get(self, image: str, tell: Tell | None = None) -> Image:
        """The image that is so named, fetched, unpacked or built where it is not here. Blocking.

        Raises UsageError, ImageFault, EnvironmentFault.
        """
        for prefix in (ID, BUILDING):
            if image.startswith(prefix):
                return self.shelf.get(image.removeprefix(prefix)) or oci.broken(image, "there is no such image here")
        if image.startswith(_LOCAL):
            found = self.take_in(oci.opened(image), tell)
            self.shelf.keep(found)
            return found
        if image.startswith("dockerfile:"):
            return build_file(Path(image.removeprefix("dockerfile:")).expanduser(), self, tell=tell)
        return self.shelf.named(canonical(image)) or self.pull(image, tell=tell)

    def take_in(self, source: oci.Source, tell: Tell | None = None) -> Image:
        """The image of ``source``, its layers unpacked. Raises as :meth:`get` does."""
        return take_in(source, self.layers, self.crossing, tell)

    def build(self, order: Order, name: str = "", tell: Tell | None = None) -> Image:
        """The image of a Dockerfile, kept under ``name`` where one is given. Raises as :meth:`get` does."""
        name = canonical(name) if name else ""
        found = build(order, self, tell)
        self.shelf.keep(found, name)
        return found

    def pull(self, image: str, name: str = "", tell: Tell | None = None) -> Image:
        """The image as its source has it now, kept under ``name``, or under its own. Raises as :meth:`get` does."""
        if image.startswith(_LOCAL):
            if not name:
                raise UsageError(f"{image} needs a name to be kept under", field="--as", remedy="Say --as NAME:TAG.")
            found = self.take_in(oci.opened(image), tell)
        else:
            from woodshed.sandbox.images.registry import Registry

            with Registry(reference.parse(image), self.layers, self._stopped) as source:
                found = self.take_in(source, tell)
        self.shelf.keep(found, canonical(name or image))
        return found


def canonical(image: str) -> str:
    """The full name that stands for ``image``. Raises UsageError, as for a word that no kind begins with."""
    before, colon, _ = image.partition(":")
    if colon and before in ("dir", "host", "file", "docker-archive"):
        raise UsageError(f"{image!r} is no image that can be used here", field="image", remedy=KNOWN)
    try:
        return str(reference.parse(image))
    except UsageError as error:
        raise UsageError(error.message, field="image", remedy=KNOWN) from None

