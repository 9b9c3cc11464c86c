"""COPY and ADD: from the context, from here-documents, from other stages and images."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from woodshed.dockerfile import Instruction, Stage
from woodshed.dockerfile.words import Unreadable, expand_document, split
from woodshed.sandbox.images.container import most_bytes
from woodshed.sandbox.images.crossing import Crossing
from woodshed.sandbox.images.dockerfile.context import Item, Ownership, digest, extract, feed, is_archive
from woodshed.sandbox.images.dockerfile.state import Site, State
from woodshed.sandbox.images.dockerfile.steps import copy_between, owner, settle
from woodshed.sandbox.images.oci import Config
from woodshed.sandbox.native import layering
from woodshed.sandbox.native.box import NativeSandbox

_REMOTE = ("http://", "https://", "git@", "git://", "ssh://")
_FLAGS = {"COPY": frozenset({"from", "chown", "chmod", "link"}), "ADD": frozenset({"chown", "chmod", "link"})}


@dataclass(frozen=True, slots=True)
class _Part:
    """One source of COPY. ``alone``: a single file, which may get the target's name. ``archive``: ADD unpacks it."""

    items: tuple[Item, ...]
    digest: str
    alone: bool = False
    archive: Path | None = None


class Copier:
    """Copies for one build."""

    def __init__(self, build: Site) -> None:
        self._build = build

    def copy(self, state: State, step: Instruction, stage: Stage) -> None:
        """Do a COPY or ADD: one more layer of ``state``. Raises UsageError, ImageFault."""
        build, flags = self._build, dict(step.flags)
        for name in flags:
            if name not in _FLAGS[step.keyword]:
                build.refuse(step.line, f"{step.keyword} --{name} is not supported", beyond=True)
        texts, target = self._words(state, step)
        chown, mode = build.fill(state, step, flags.get("chown", "")), self._mode(state, step, flags)
        target = target if target.startswith("/") else posixpath.join(state.config.workdir, target)
        if "from" in flags:
            state.layers = self._between(state, step, stage, flags["from"], (texts, target, chown, mode))
            return
        parts = self._parts(state, step, texts)
        into_folder = len(parts) > 1 or target.endswith(("/", "/."))
        name = build.key("copy", state.layers, target, chown, mode, into_folder,
                         [(part.digest, part.alone, part.archive is not None) for part in parts])

        def make(into: Path, crossing: Crossing) -> None:
            async def work(box: NativeSandbox) -> None:
                uid, gid = await owner(box, chown)
                for part in parts:
                    await layering.unpack(
                        box.link, _feed(part, Ownership(uid, gid, mode)), target, owners=box.world.privileged,
                        owner=(uid, gid), only=part.alone and not into_folder, max_bytes=most_bytes())

            place = build.place(state.layers, Config())
            crossing(lambda engine: settle(engine, place, into, work))

        state.layers = (build.layer(name, make), *state.layers)

    def _between(
        self, state: State, step: Instruction, stage: Stage, source: str, what: tuple[list[str], str, str, int | None]
    ) -> tuple[str, ...]:
        build, (texts, target, chown, mode) = self._build, what
        other = build.source(source, stage, step.line)
        name = build.key("copy from", state.layers, other.layers, texts, target, chown, mode)
        if len(texts) > 1 and not target.endswith("/"):
            target += "/"

        def make(into: Path, crossing: Crossing) -> None:
            place, giving = build.place(state.layers, Config()), build.place(other.layers, Config())
            crossing(lambda engine: copy_between(engine, place, giving, texts, target, chown, mode, into))

        return (build.layer(name, make), *state.layers)

    def _words(self, state: State, step: Instruction) -> tuple[list[str], str]:
        """The sources that are no here-documents, and the target, variables put in."""
        array = step.array
        raw = array if array is not None else split(step.text, self._build.parsed.escape)
        if len(raw) < 2:
            self._build.refuse(step.line, f"{step.keyword} needs a source and a target")
        words = [self._build.fill(state, step, word) if array is None else word for word in raw]
        docs = {f"<<{doc.name}" for doc in step.heredocs}
        texts = [word for word in words[:-1] if word.replace("<<-", "<<") not in docs]
        if len(words) > 2 and not words[-1].endswith("/") and words[-1] not in (".", ".."):
            self._build.refuse(step.line, "several sources need a folder as their target", "End the target with '/'.")
        return texts, words[-1]

    def _mode(self, state: State, step: Instruction, flags: dict[str, str]) -> int | None:
        if "chmod" not in flags:
            return None
        text = self._build.fill(state, step, flags["chmod"])
        if not text or set(text) - set("01234567") or int(text, 8) > 0o7777:
            self._build.refuse(step.line, f"--chmod={text} is no octal mode", "Write it as in --chmod=0755.",
                               beyond=True)
        return int(text, 8)

    def _parts(self, state: State, step: Instruction, texts: Sequence[str]) -> list[_Part]:
        build, parts = self._build, []
        for doc in step.heredocs:
            body = doc.body if doc.raw else self._document(state, step, doc.body)
            items = (Item(doc.name, None, body.encode()),)
            parts.append(_Part(items, digest(items), alone=True))
        for text in texts:
            if step.keyword == "ADD" and (text.startswith(_REMOTE) or text.endswith(".git")):
                build.refuse(step.line, "ADD of what lies elsewhere is not supported: a build fetches nothing itself",
                             "Fetch it before, and COPY it.", beyond=True)
            for source in build.context.sources(text):
                parts.append(self._part(step, source))
        return parts

    def _document(self, state: State, step: Instruction, body: str) -> str:
        try:
            return expand_document(body, state.variables)
        except Unreadable as error:
            self._build.refuse(step.line, str(error))

    def _part(self, step: Instruction, source: str) -> _Part:
        context = self._build.context
        real = context.real(source)
        archive = real if step.keyword == "ADD" and is_archive(real) else None
        items = tuple(context.items(source))
        return _Part(items, digest(items), alone=not real.is_dir() and archive is None, archive=archive)


def _feed(part: _Part, ownership: Ownership) -> Callable[[Callable[[bytes], None]], None]:
    if part.archive is not None:
        return partial(extract, part.archive, most_bytes())
    return lambda write: feed(part.items, ownership, part.digest, write)

