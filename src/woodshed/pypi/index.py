"""What an index offers of one package: PEP 691 (JSON) or PEP 503 (HTML) pages, and folders of files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from woodshed.errors import EnvironmentFault
from woodshed.pypi.config import Config
from woodshed.pypi.web import Missing, Web, bare

_ACCEPT = ("application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html; q=0.2, text/html; q=0.01")


@dataclass(frozen=True, slots=True)
class File:
    """One file on offer. ``url`` is http(s) or a local ``path``; ``sha256`` in hex where the index tells it."""

    name: str
    url: str
    path: Path | None = None
    sha256: str | None = None
    requires_python: str | None = None
    yanked: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """All files found, by preference of their index; ``known`` where an index has a page of the package; the trouble
    with those that could not be asked."""

    files: tuple[File, ...]
    known: bool
    trouble: EnvironmentFault | None


def offer(name: str, config: Config, web: Web) -> Offer:
    """Ask every index and folder of ``config`` for the normalised ``name``. One that fails does not stop the others."""
    files: list[File] = []
    known, trouble = False, None
    for place in [*(f"{index}/{name}/" for index in config.indexes), *config.links]:
        try:
            found = list(_local(place) if _path(place) else _remote(place, web))
        except Missing:
            continue
        except EnvironmentFault as error:
            trouble = error
            continue
        known = known or place not in config.links
        files += found
    return Offer(tuple(files), known, trouble)


def _path(place: str) -> Path | None:
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(place).expanduser() if parts.scheme == "" else None


def _local(place: str) -> Iterator[File]:
    path = _path(place)
    assert path is not None
    if path.is_dir() and not (path / "index.html").is_file():
        for child in sorted(path.iterdir()):
            if child.is_file():
                yield File(child.name, child.as_uri(), child)
        return
    page = path / "index.html" if path.is_dir() else path
    if not page.is_file():
        raise Missing
    for file in _anchors(page.absolute().as_uri(), page.read_text(encoding="utf-8", errors="replace")):
        yield file if (here := _path(file.url)) is None else File(
            file.name, file.url, here, file.sha256, file.requires_python, file.yanked
        )


def _remote(url: str, web: Web) -> Iterator[File]:
    final, kind, body = web.page(url, _ACCEPT)
    if not kind.endswith("json"):
        yield from _anchors(final, body.decode(errors="replace"))
        return
    try:
        for item in json.loads(body)["files"]:
            yield _item(final, item)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise EnvironmentFault(f"the index page {bare(url)} is not the protocol it says it is ({error!r})") from error


def _item(base: str, item: dict[str, Any]) -> File:
    sha256 = item.get("hashes", {}).get("sha256")
    return File(str(item["filename"]), urljoin(base, str(item["url"])), None, str(sha256).lower() if sha256 else None,
                item.get("requires-python"), bool(item.get("yanked")))


def _anchors(base: str, text: str) -> Iterator[File]:
    page = _Page()
    page.feed(text)
    base = urljoin(base, page.base) if page.base else base
    for attributes in page.anchors:
        if not (href := attributes.get("href")):
            continue
        url, fragment = urldefrag(urljoin(base, href))
        algorithm, _, value = fragment.partition("=")
        yield File(unquote(urlsplit(url).path).rpartition("/")[2], url, None,
                   value.lower() if algorithm == "sha256" else None,
                   attributes.get("data-requires-python"), "data-yanked" in attributes)


class _Page(HTMLParser):
    """The anchors of a page, and its ``<base>``."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.anchors: list[dict[str, str | None]] = []
        self.base: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.anchors.append(dict(attrs))
        elif tag == "base" and self.base is None:
            self.base = dict(attrs).get("href")
