"""Requirement strings are hostile input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from woodshed.errors import UsageError
from woodshed.sandbox.images.requirement import BASE, Pin, key, parse


@pytest.mark.parametrize("text", [
    "-r /etc/passwd", "--index-url=http://evil", "-e .", " -i http://evil", "--", "-", "", " ", ".", "..", "./x",
    "/etc/x", "../x", "~/x", "file:///etc/passwd", "http://evil/x.whl", "git+https://evil/x", "x @ http://evil/x.whl",
    "x @ file:///etc/passwd", "x.whl", "x-1.0-py3-none-any.whl", "evil.tar.gz", "evil.zip", "a b", "a\n-r b", "a\0b",
    "a;b", "a==", "a # --index-url http://evil", "a --hash=sha256:00", "a[", "$(id)", "a`id`", "a\r\n--pre",
])
def test_options_urls_paths_and_other_tricks_are_refused(text: str) -> None:
    """Only what is a plain requirement passes; the error names the field and shows the right form."""
    with pytest.raises(UsageError, match="requirements") as caught:
        parse(["attrs", text])
    assert caught.value.remedy


def test_requirements_are_normalised_sorted_and_unique() -> None:
    """The same wish in another order or spelling is the same layer."""
    assert parse(["b>=1,<2", "a [x] == 1", "b<2,>=1"]) == ("a[x]==1", "b<2,>=1")
    assert parse(['a; python_version < "3"']) == ('a; python_version < "3"',)
    assert parse([]) == ()


@given(st.text(max_size=40))
def test_whatever_passes_is_safe_as_an_argument(text: str) -> None:
    """A requirement that passes starts with a letter or digit, names no URL or path, and parses to itself."""
    try:
        (passed,) = parse([text])
    except UsageError:
        return
    assert passed[0].isalnum()
    assert "/" not in passed.partition(";")[0]
    assert "\n" not in passed
    assert str(Requirement(passed)) == passed


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_no_two_lists_share_a_key(one: list[str], two: list[str]) -> None:
    """Keys keep the borders between parts."""
    assert (key(*one) == key(*two)) == (one == two)


@given(st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True), st.from_regex(r"[0-9.]{1,6}", fullmatch=True))
def test_a_pin_is_read_as_it_was_written(name: str, version: str) -> None:
    """Pins survive being noted."""
    pin = Pin(name, version, "0" * 64)
    assert Pin.read(str(pin)) == pin


def test_the_base_pins_pytest_pip_and_their_needs_by_hash() -> None:
    """Every pin of the base has a version and a sha256."""
    assert {"pip", "pytest", "pluggy", "iniconfig", "packaging", "pygments"} == {pin.name for pin in BASE}
    assert all(len(pin.sha256) == 64 and pin.version for pin in BASE)
