"""Secrets by their shape and by their value, ordinary text that is none, and what resembles a benchmark."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.trainers.near import Benchmark
from woodshed.trainers.secrets import Masker

A36 = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
SHAPES = {
    "private_key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVPmB92K27u",
    "aws_key": "AKIA" + "IOSFODNN7EXAMPLE",
    "github_token": "ghp_" + A36,
    "gitlab_token": "glpat-" + A36[:20],
    "slack_token": "xoxb-" + "123456789012-" + A36[:12],
    "google_key": "AIza" + A36[:35],
    "stripe_key": "sk_" + "live_" + A36[:24],
    "npm_token": "npm_" + A36,
    "pypi_token": "pypi-" + A36 + A36,
    "huggingface_token": "hf_" + A36[:34],
    "api_key": "sk-" + "ant-" + A36,
}
PARTS = {
    "url_password": ("postgres://admin:", "hunter2", "@db.example/x"),
    "authorization": ("Authorization: Bearer ", "abcdef123456", "\n"),
    "assigned": ("api_key = '", "zz99yy88xx77ww66vv55", "'"),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_a_secret_is_known_by_its_shape(kind: str) -> None:
    """The whole of it gives way to its kind, inside any text, and is counted."""
    masker = Masker()
    assert masker.text(f"see {SHAPES[kind]} here") == f"see [masked:{kind}] here"
    assert masker.found == {kind: 1}


@pytest.mark.parametrize("kind", PARTS)
def test_what_stands_around_a_secret_stays(kind: str) -> None:
    """Of an address, a header or an assignment only the secret gives way."""
    before, secret, after = PARTS[kind]
    assert Masker().text(before + secret + after) == f"{before}[masked:{kind}]{after}"


@pytest.mark.parametrize("text", [
    "password = get_password()", "the secret: be kind", "http://host:8080/path@x", "sk-learn-is-a-nice-library-to-use",
    "user@example.com", "def token(self): return 1", "AKIA", "git@github.com:org/repo.git", "api_key = os.environ['X']",
    "eyJ", "0123456789abcdef0123456789abcdef01234567",
], ids=range(11))
def test_ordinary_text_stays(text: str) -> None:
    """Code and prose that only look a little like a secret are left as they are."""
    assert Masker().text(text) == text


@pytest.mark.parametrize("form", [
    str, json.dumps, lambda value: quote(value, safe=""), lambda value: base64.b64encode(value.encode()).decode(),
], ids=["plain", "json", "url", "base64"])
def test_a_lent_value_is_found_however_it_is_written(form: object) -> None:
    """Quotes, line breaks and signs of a value are found as JSON, URLs and base64 write them."""
    value = 'pa"ss\nwörd/+ 1'
    written = form(value)  # type: ignore[operator]  # one of the callables above
    masker = Masker({"DB": value})
    assert "[masked:variable:DB]" in masker.text(f"<{written}>")
    assert "ss" not in masker.text(f"<{written}>").replace("masked", "").replace("variable", "")


def test_a_short_value_is_no_secret() -> None:
    """A variable that says 'yes' does not mask every 'yes'."""
    assert Masker({"FLAG": "yes"}).text("yes") == "yes"


def test_all_that_holds_text_is_masked() -> None:
    """Names and values at any depth; other values stay what they are; a look counts nothing."""
    masker = Masker({"K": "s3cret-value"})
    value = {"s3cret-value": [1, None, True, 2.5, {"x": ("s3cret-value",)}]}
    assert masker.kinds([value]) == {"variable:K"}
    assert not masker.found
    assert masker.masked(value) == {"[masked:variable:K]": [1, None, True, 2.5, {"x": ["[masked:variable:K]"]}]}


@given(st.text(), st.text(), st.text(alphabet="abcXYZ019/+=_-", min_size=6))
def test_no_text_around_it_hides_a_lent_value(before: str, after: str, value: str) -> None:
    """Whatever stands around it, a lent value never stays whole."""
    assert value not in Masker({"V": value}).text(before + value + after).replace("[masked:variable:V]", "\0")


@given(st.lists(st.sampled_from(["-----BEGIN ", "PRIVATE KEY-----", "eyJ", "://", ":", "@", "sk-", "password=",
                                 "a1" * 9]), max_size=60))
def test_masking_ends_whatever_the_text(parts: list[str]) -> None:
    """Text made of the beginnings of secrets is masked or left, and no pattern goes astray in it."""
    masker = Masker()
    assert ("[masked:" in masker.text("".join(parts))) == bool(masker.found)


def test_benchmarks_are_compared_by_what_they_share() -> None:
    """Case, signs and line breaks do not count; other work shares nothing; a short text must be the same."""
    bench = Benchmark.of([("b1", "Write a function that sorts the given names by their length and prints them all")])
    near = bench.nearest("WRITE a function, that sorts the given names\nby their length -- and prints them all. End")
    assert near is not None
    assert (near.item, near.share) == ("b1", 1.0)
    assert bench.nearest("Read the log of the server and count how often each address asked for the page") is None
    assert bench.nearest("") is None
    short = Benchmark.of([("b", "fix it")])
    assert short.nearest("Fix it!") is not None
    assert short.nearest("fix it now") is None
