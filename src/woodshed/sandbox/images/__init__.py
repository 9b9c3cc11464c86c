"""Root file systems of sandboxes: the host image, unpacked directories, images of containers, and what lies over them.

``store.py`` prepares them. ``kinds.py`` tells images of containers apart: ``oci.py`` reads them, ``registry.py``
fetches, ``unpack.py`` unpacks, ``dockerfile/`` builds; ``layers.py`` keeps their layers.
"""

from woodshed.sandbox.images.build import Builder, BuildJob, BuildResult
from woodshed.sandbox.images.rootfs import Bind, Rootfs
from woodshed.sandbox.images.store import Images

__all__ = ["Bind", "BuildJob", "BuildResult", "Builder", "Images", "Rootfs"]
