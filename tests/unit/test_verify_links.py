"""Links among captured changes, and what only the verifier's sandbox holds."""

from __future__ import annotations

import pytest

from woodshed.model import Change, ChangeKind
from woodshed.verify.links import peeks, resolved


def link(path: str, target: str) -> Change:
    return Change(path=path, kind=ChangeKind.SYMLINK, target=target)


@pytest.mark.parametrize(("target", "caught"), [
    ("/solution/calc.py", True), ("/tests", True), ("../tests/expected.txt", True), ("/", True), ("..", True),
    ("/proc/self/root/tests/x", True), ("/logs/verifier/junit.xml", True), ("/logs", True), ("//tests/./x", True),
    ("up/tests/x", True), ("round", False), ("tests/x", False), ("/testsuite", False), ("/usr/bin/python3", False),
    ("../workspace/a", False), ("", False), ("/opt/venv/bin/python3", False),
])
def test_links_to_what_only_the_verifier_has(target: str, caught: bool) -> None:
    """A link counts by where it leads, also through another link; a circle leads nowhere."""
    own = {change.path: change for change in (
        link("/workspace/calc.py", target), link("/workspace/up", "/etc/.."), link("/workspace/round", "round"))}
    assert peeks(own["/workspace/calc.py"], own) is caught


def test_only_links_are_looked_at() -> None:
    """A file at such a place is another rule's, and a link without a target is none."""
    assert not peeks(Change(path="/tests/x", kind=ChangeKind.FILE), {})
    assert not peeks(Change(path="/workspace/x", kind=ChangeKind.SYMLINK), {})


def test_a_chain_is_followed_as_the_kernel_does() -> None:
    """Dots are taken after the link before them, and more than forty links lead nowhere."""
    own = {"/a": link("/a", "/x/y"), "/x/y": link("/x/y", "../z")}
    assert resolved("/a/../b", own) == "/b"
    chain = {f"/l{number}": link(f"/l{number}", f"l{number + 1}") for number in range(50)}
    assert resolved("/l0", chain) is None
    assert resolved("/l30", chain) == "/l50"
