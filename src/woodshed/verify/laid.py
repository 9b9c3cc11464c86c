"""Files of ours that lie in the verifier's sandbox when it opens, beside the captured changes."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from typing import BinaryIO

from woodshed.interfaces import BlobSink
from woodshed.model import Change, ChangeKind, ChangeSet


class Laid:
    """A view of ``blobs`` that holds a few contents of ours as well; nothing of them is stored.

    They go with the changes, and not by a write of each, because every call into a live sandbox costs a round trip.
    """

    def __init__(self, blobs: BlobSink, files: Mapping[str, bytes]) -> None:
        self._blobs = blobs
        self._ours = {hashlib.sha256(content).hexdigest(): content for content in files.values()}
        self._files = files

    def before(self, changes: ChangeSet) -> ChangeSet:
        """``changes`` with our files first, so that none of the agent's decides where they come to lie."""
        ours = tuple(
            Change(path=path, kind=ChangeKind.FILE, size=len(content), sha256=hashlib.sha256(content).hexdigest())
            for path, content in self._files.items()
        )
        return changes.model_copy(update={"changes": (*ours, *changes.changes)})

    def put(self, content: bytes | BinaryIO) -> str:
        """Store in the blobs behind."""
        return self._blobs.put(content)

    def open(self, sha256: str) -> BinaryIO:
        """Ours, or what the blobs behind have."""
        ours = self._ours.get(sha256)
        return self._blobs.open(sha256) if ours is None else io.BytesIO(ours)
