"""pip's configuration is read as pip reads it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from woodshed.errors import UsageError
from woodshed.pypi.config import read


@pytest.fixture(autouse=True)
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any configuration but the file returned, which is the user's."""
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("WOODSHED_PIP_ARGS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "xdg"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "config/pip/pip.conf"
    path.parent.mkdir(parents=True)
    return path


def test_files_then_variables_then_our_own_arguments(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A section of a command overrides the global one, a variable the files, and our setting everything."""
    conf.write_text("[global]\nindex-url = http://a/simple/\ncert = /a.pem\ntimeout = 7\nextra-index-url =\n"
                    "    http://b/simple\n    http://c/simple\n[download]\ncert = /b.pem\n[list]\ncert = /c.pem\n")
    found = read()
    assert found.indexes == ("http://a/simple", "http://b/simple", "http://c/simple")
    assert (found.cert, found.timeout_s) == ("/b.pem", 7.0)
    monkeypatch.setenv("PIP_INDEX_URL", "http://d/simple")
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "9")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "D:8080 e")
    found = read()
    assert found.indexes[0] == "http://d/simple"
    assert (found.timeout_s, found.trusted) == (9.0, frozenset({"d:8080", "e"}))
    monkeypatch.setenv("WOODSHED_PIP_ARGS", "-i http://f/simple --extra-index-url 'http://g/simple' -f /wheels --pre")
    found = read()
    assert found.indexes == ("http://f/simple", "http://b/simple", "http://c/simple", "http://g/simple")
    assert found.links == ("/wheels",)


def test_the_users_file_overrides_the_machines_and_a_named_one_both(
    conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's, the user's and PIP_CONFIG_FILE's file, in this order; /dev/null turns files off."""
    machine = tmp_path / "xdg/pip/pip.conf"
    machine.parent.mkdir(parents=True)
    machine.write_text("[global]\nindex_url = http://machine\nproxy = http://proxy\n")
    assert read().indexes == ("http://machine",)
    conf.write_text("[global]\nindex-url = http://user\n")
    found = read()
    assert (found.indexes, found.proxy) == (("http://user",), "http://proxy")
    (tmp_path / "own.conf").write_text("[install]\nindex-url = http://own\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "own.conf"))
    assert read().indexes == ("http://own",)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert read().proxy is None


def test_without_an_index_only_folders_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """``no-index`` turns every index off."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    found = read()
    assert (found.indexes, found.links) == ((), ("/a", "/b"))


@pytest.mark.parametrize("text", ["[global", "no section", "[global]\ntimeout = soon"])
def test_a_broken_configuration_is_named(conf: Path, text: str) -> None:
    """A file or number that cannot be parsed is a usage error."""
    conf.write_text(text)
    with pytest.raises(UsageError, match="pip"):
        read()
