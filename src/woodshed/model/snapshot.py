"""SnapshotManifest: what names an exported snapshot, and lets another machine make it again."""

from __future__ import annotations

from pydantic import Field

from woodshed.model.record import Record


class SnapshotManifest(Record):
    """A snapshot as blobs: tar archives of its layers, topmost first, over an image that is named and not included."""

    version: int = 1
    digest: str = Field(description="of the image and all layers: equal digests are equal files")
    image_digest: str
    layers: tuple[str, ...] = Field(default=(), description="sha256 of each layer's archive, topmost first")
    size_bytes: int = Field(default=0, ge=0, description="of all archives")
