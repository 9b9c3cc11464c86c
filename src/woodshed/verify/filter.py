"""From captured changes to those a verification may restore, and a record of what was kept out."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from posixpath import basename, normpath

from woodshed.interfaces import BlobSink
from woodshed.model import Change, ChangeKind, ChangeSet
from woodshed.verify.links import peeks
from woodshed.verify.merge import merged
from woodshed.verify.protect import Rules, Touch, beneath, touches_flags
from woodshed.verify.start import Start

KEPT = (None, Touch.NOTED, Touch.MERGED)
_MERGED_BYTES = 300_000
"""Of a pyproject.toml or package.json; a larger one is dropped: reading it would hold up every other attempt."""
_SPECIAL = (": device", ": fifo", ": socket")
_HIDES = (ChangeKind.OPAQUE, ChangeKind.DELETED, ChangeKind.FILE, ChangeKind.SYMLINK)


@dataclass(slots=True)
class Filtered:
    """``changes`` can be restored; ``touched`` are (path, Touch) of what was kept out, set back or noted."""

    changes: ChangeSet
    touched: list[tuple[str, Touch]] = field(default_factory=list)
    mimics: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """What the verdict says about it."""
        special = any(entry.endswith(_SPECIAL) for entry in self.changes.refused)
        return (*touches_flags(self.touched), *(("lookalike_path",) if self.mimics else ()),
                *(("special_file",) if special else ()))

    @property
    def control(self) -> bool:
        """True when a path that steers the verification was touched."""
        return any(touch is Touch.CONTROL for _, touch in self.touched)


def filtered(changes: ChangeSet, rules: Rules, start: Start, blobs: BlobSink) -> Filtered:
    """What may be restored of ``changes``. Protected files of the start survive even where a parent was replaced.

    A protected file whose content is as at the start (a checkout, a copy) is dropped without a mark.
    """
    result = Filtered(changes)
    own = {normpath(change.path): change for change in changes.changes}
    kept: list[Change] = []
    for change in changes.changes:
        result.mimics = result.mimics or rules.mimics(change)
        touch = Touch.CONTROL if peeks(change, own) else rules.classify(change)
        if touch in KEPT:
            kept.extend(_kept(change, touch, own, rules, start, blobs, result))
        elif touch is Touch.CACHE or _unchanged(change, start) or _unasked(change, touch, rules):
            continue
        else:
            result.touched.append((change.path, touch))
    result.changes = changes.model_copy(update={"changes": tuple(kept)})
    return result


def _kept(change: Change, touch: Touch | None, own: dict[str, Change], rules: Rules, start: Start, blobs: BlobSink,
          result: Filtered) -> Iterator[Change]:
    if touch is Touch.NOTED:
        result.touched.append((change.path, touch))
    if touch is Touch.MERGED and not _unchanged(change, start):
        yield from _merged(change, start, blobs, result)
    elif change.kind in _HIDES or _under_opaque(change, own):
        yield from _uncovered(change, own, rules, start, result)
    else:
        yield change


def _unchanged(change: Change, start: Start) -> bool:
    if change.kind is not ChangeKind.FILE:
        return False
    content = start.read(normpath(change.path))
    return content is not None and hashlib.sha256(content).hexdigest() == change.sha256


def _unasked(change: Change, touch: Touch, rules: Rules) -> bool:
    """True outside the capture where that is no news: nothing was declared, or a mere folder above a root."""
    if touch is not Touch.OUTSIDE or not rules.declared:
        return touch is Touch.OUTSIDE
    path = normpath(change.path)
    return change.kind is ChangeKind.DIRECTORY and any(beneath(root, path) for root in rules.capture)


def _merged(change: Change, start: Start, blobs: BlobSink, result: Filtered) -> Iterator[Change]:
    if change.sha256 is None or change.size > _MERGED_BYTES:
        result.touched.append((change.path, Touch.CONTROL))
        return
    with blobs.open(change.sha256) as stream:
        new = stream.read(_MERGED_BYTES)
    content = merged(basename(change.path), start.read(normpath(change.path)), new)
    if content == new:
        yield change
        return
    result.touched.append((change.path, Touch.CONTROL))
    if content is not None:
        result.touched.append((change.path, Touch.MERGED))
        yield change.model_copy(update={"sha256": blobs.put(io.BytesIO(content)), "size": len(content)})


def _under_opaque(change: Change, own: dict[str, Change]) -> bool:
    """True for a plain folder that was made anew within a replaced one: it too hides what the start had there."""
    path = normpath(change.path)
    while change.kind is ChangeKind.DIRECTORY and path != "/":
        path = path.rsplit("/", 1)[0] or "/"
        if path in own and own[path].kind is ChangeKind.OPAQUE:
            return True
    return False


def _uncovered(change: Change, own: dict[str, Change], rules: Rules, start: Start,
               result: Filtered) -> Iterator[Change]:
    """``change``, or what does the same without hiding protected files of the start below it."""
    path = normpath(change.path)
    guarded = list(_protected_below(path, rules, start))
    # Where the changes speak about such a file themselves, that change is judged, not this one.
    result.touched.extend((entry, touch) for entry, touch in guarded if entry not in own)
    if not guarded:
        # A folder made anew in a replaced one: no longer hidden by that one if it was uncovered.
        anew = change.kind is ChangeKind.DIRECTORY and any(True for _ in start.children(path))
        yield change.model_copy(update={"kind": ChangeKind.OPAQUE}) if anew else change
    elif change.kind in (ChangeKind.OPAQUE, ChangeKind.DIRECTORY):
        yield change.model_copy(update={"kind": ChangeKind.DIRECTORY})
        yield from _emptied(path, own, rules, start)
    elif change.kind is ChangeKind.DELETED:
        yield from _emptied(path, own, rules, start)
    # a file or link in the place of a folder with protected files: the folder stays


def _protected_below(path: str, rules: Rules, start: Start) -> Iterator[tuple[str, Touch]]:
    for child, folder in start.children(path):
        if folder:
            yield from _protected_below(child, rules, start)
            continue
        touch = rules.classify(Change(path=child, kind=ChangeKind.DELETED))
        if touch in (Touch.CONTROL, Touch.TEST):
            yield child, touch


def _emptied(path: str, own: dict[str, Change], rules: Rules, start: Start) -> Iterator[Change]:
    """Deletions of everything the start has below ``path`` but what is protected or has a change of its own."""
    for child, folder in start.children(path):
        if child in own:
            continue
        if folder and any(True for _ in _protected_below(child, rules, start)):
            yield from _emptied(child, own, rules, start)
        elif folder or rules.classify(Change(path=child, kind=ChangeKind.DELETED)) in KEPT:
            yield Change(path=child, kind=ChangeKind.DELETED)
