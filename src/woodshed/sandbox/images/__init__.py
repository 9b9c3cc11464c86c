"""Root file systems of sandboxes: the host image, unpacked directories, and the layers of requirements and uploads."""

from woodshed.sandbox.images.build import Builder, BuildJob, BuildResult
from woodshed.sandbox.images.rootfs import Bind, Rootfs
from woodshed.sandbox.images.store import Images

__all__ = ["Bind", "BuildJob", "BuildResult", "Builder", "Images", "Rootfs"]
