"""Names of images: Docker's rules, and what they refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.errors import UsageError
from woodshed.sandbox.images import reference

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(("text", "full", "host"), [
    ("python", "docker.io/library/python:latest", "registry-1.docker.io"),
    ("python:3.12-slim", "docker.io/library/python:3.12-slim", "registry-1.docker.io"),
    ("docker://python", "docker.io/library/python:latest", "registry-1.docker.io"),
    ("org/name", "docker.io/org/name:latest", "registry-1.docker.io"),
    ("docker.io/python", "docker.io/library/python:latest", "registry-1.docker.io"),
    ("index.docker.io/org/a", "docker.io/org/a:latest", "registry-1.docker.io"),
    ("localhost/a", "localhost/a:latest", "localhost"),
    ("localhost:5000/a:b", "localhost:5000/a:b", "localhost:5000"),
    ("127.0.0.1:5000/a/b/c", "127.0.0.1:5000/a/b/c:latest", "127.0.0.1:5000"),
    ("ghcr.io/o/n:v1@" + DIGEST, "ghcr.io/o/n@" + DIGEST, "ghcr.io"),
    ("ghcr.io/o/n@" + DIGEST, "ghcr.io/o/n@" + DIGEST, "ghcr.io"),
    ("[::1]:5000/a", "[::1]:5000/a:latest", "[::1]:5000"),
    ("Host/a", "Host/a:latest", "Host"),
    ("a/b__c.d-e", "docker.io/a/b__c.d-e:latest", "registry-1.docker.io"),
])
def test_names(text: str, full: str, host: str) -> None:
    """Registry, repository, tag and digest, with docker.io's defaults."""
    found = reference.parse(text)
    assert (str(found), found.host) == (full, host)
    assert reference.parse(str(found)) == reference.parse(str(reference.parse(str(found))))


@pytest.mark.parametrize("text", [
    "", "Python", "a//b", "a/", "/a", "a:", "a:b c", "a@sha256:abc", "a@md5:" + "a" * 32, "a..b", "a/../b", "a b",
    "-a", "a_", "ghcr.io/", "ghcr.io", "x" * 300, "a:" + "t" * 129, "host:port/a", "a\n", "a:b\0", "http://a/b",
    "..", "a/b:../../c", "a@" + DIGEST + "/..",
])
def test_what_is_no_name(text: str) -> None:
    """Refused, with the field and a remedy."""
    if text == "ghcr.io":
        assert str(reference.parse(text)) == "docker.io/library/ghcr.io:latest"  # as Docker has it
        return
    with pytest.raises(UsageError) as caught:
        reference.parse(text)
    assert caught.value.field == "image"
    assert caught.value.remedy


@given(st.text(max_size=80))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    """A name that is taken has no part that could lead anywhere else on a registry."""
    try:
        found = reference.parse(text)
    except UsageError:
        return
    assert ".." not in found.repository.split("/")
    assert "?" not in str(found)
    assert "#" not in str(found)
