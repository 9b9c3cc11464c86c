"""Shelf: everything that was left out of what the model sees, whole, by a handle. Nothing on it is in the sandbox."""

from __future__ import annotations

from collections.abc import Iterator

from woodshed.interfaces import BlobSink

LOG = "log"
"""The handle of the list of all calls whose turns were left out."""
_IN_MEMORY = 4_000  # characters; what is longer goes to the store, where there is one


class Shelf:
    """Texts of one attempt by handle: outputs by the id of their call, what the model wrote by its turn (``t0012``).

    Long ones lie in ``sink``, content-addressed; without one they stay in memory, each bounded by its maker.
    """

    def __init__(self, sink: BlobSink | None = None) -> None:
        self._sink = sink
        self._texts: dict[str, str] = {}
        self._blobs: dict[str, str] = {}
        self._log: list[str] = []

    def keep(self, handle: str, text: str) -> str | None:
        """Keep ``text``; its sha256 where it went to the store. Raises StoreFault."""
        if self._sink is None or len(text) <= _IN_MEMORY:
            self._texts[handle] = text
            return None
        self._blobs[handle] = self._sink.put(text.encode("utf-8", "surrogatepass"))
        return self._blobs[handle]

    def know(self, handle: str, blob: str) -> None:
        """The text of ``handle`` lies in the store already."""
        self._blobs[handle] = blob

    def __contains__(self, handle: str) -> bool:
        return handle in self._texts or handle in self._blobs

    def log(self, line: str) -> None:
        """One line more for the list of calls."""
        self._log.append(line)

    def text(self, handle: str) -> str | None:
        """The whole text; None for a handle that is none. Raises StoreFault where the store lost it."""
        if handle == LOG:
            return "\n".join(self._log)
        if handle in self._blobs and self._sink is not None:
            with self._sink.open(self._blobs[handle]) as blob:
                return blob.read().decode("utf-8", "surrogatepass")
        return self._texts.get(handle)

    def handles(self) -> list[str]:
        """All handles but the log's, in the order in which they were made."""
        return sorted(self._texts.keys() | self._blobs.keys())

    def lines(self, needle: str) -> Iterator[tuple[str, str]]:
        """Every line that holds ``needle``, whatever the case, with its handle. Plain text: a pattern could hang us."""
        wanted = needle.casefold()
        for handle in self.handles():
            for line in (self.text(handle) or "").splitlines():
                if wanted in line.casefold():
                    yield handle, line
