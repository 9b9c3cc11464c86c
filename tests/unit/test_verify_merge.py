"""Setting back the steering tables of files that are otherwise work."""

from __future__ import annotations

import json
import tomllib

import pytest

from woodshed.verify.merge import merged

START = b"""[project]
name = "a"  # kept

[tool.pytest.ini_options]
addopts = "-q"

[tool.ruff]
line-length = 88
"""


def test_work_elsewhere_passes_unchanged() -> None:
    """A pyproject.toml whose steering tables are as at the start is kept byte for byte."""
    new = START.replace(b"88", b"120")
    assert merged("pyproject.toml", START, new) == new


def test_steering_tables_are_set_back() -> None:
    """Changed pytest and coverage tables become the start's; the rest of the work stays."""
    new = START.replace(b'"-q"', b'"-p evil --co"').replace(b"88", b"120") + b'\n[tool.coverage.run]\nplugins = ["x"]\n'
    content = merged("pyproject.toml", START, new)
    assert content is not None
    assert tomllib.loads(content.decode()) == {
        "project": {"name": "a"}, "tool": {"pytest": {"ini_options": {"addopts": "-q"}}, "ruff": {"line-length": 120}}}


def test_a_new_file_loses_its_steering_tables() -> None:
    """Where the start had no pyproject.toml, a new one is kept without the tables that steer tests."""
    content = merged("pyproject.toml", None, b'[tool.pytest.ini_options]\naddopts = "-p evil"\n[project]\nname = "b"\n')
    assert content is not None
    assert tomllib.loads(content.decode()) == {"project": {"name": "b"}}


@pytest.mark.parametrize("new", [
    b'[tool]\npytest.ini_options.addopts = "-p evil"\n',
    b'tool = {pytest = {ini_options = {addopts = "-p evil"}}}\n',
    b'[tool."py\\u0074est".ini_options]\naddopts = "-p evil"\n',
    b"not toml = = =", b"\xff\xfe", b"a = " + b"[" * 100_000,
])
def test_what_cannot_be_cut_is_dropped(new: bytes) -> None:
    """A spelling the cut does not see is proved wrong by parsing, and the whole change is dropped."""
    assert merged("pyproject.toml", START, new) is None


def test_a_header_inside_a_string_is_no_header() -> None:
    """A multi-line string that looks like a steering table never loses text: kept whole or dropped whole."""
    new = b'x = """\n[tool.pytest.ini_options]\n"""\n'
    assert merged("pyproject.toml", None, new) == new
    assert merged("pyproject.toml", START, new) is None


def test_a_broken_start_can_be_mended() -> None:
    """A start that does not parse has no tables to restore, and its repair is kept."""
    new = b'[project]\nname = "a"\n'
    assert merged("pyproject.toml", b"[project\n", new) == new


def test_package_json_keeps_its_scripts() -> None:
    """Changed scripts and test settings become the start's; other keys are work."""
    start = b'{"name": "a", "scripts": {"test": "node --test"}}'
    content = merged("package.json", start, b'{"name": "b", "scripts": {"test": "true"}, "jest": {"bail": 1}}')
    assert content is not None
    assert json.loads(content) == {"name": "b", "scripts": {"test": "node --test"}}
    same = b'{"name": "c", "scripts": {"test": "node --test"}}'
    assert merged("package.json", start, same) == same
    assert merged("package.json", start, b"[1]") is None
    assert merged("package.json", start, b"{") is None


def test_entry_points_may_not_load_plugins() -> None:
    """Installed metadata is kept, unless pytest would load a plugin for it."""
    good = b"[console_scripts]\na = b:c\n"
    assert merged("entry_points.txt", None, good) == good
    assert merged("entry_points.txt", None, b"[pytest11]\nevil = evil\n") is None


def test_hostile_blanks_are_read_in_one_pass() -> None:
    """A line of blanks behind a bracket takes a moment; in the cube of them it were years."""
    for line in ("[", "[[", "[a", "[a]"):
        text = f'[tool.pytest.ini_options]\naddopts = "x"\n[x]\ns = """\n{line}{" " * 200_000}x\n"""\n'.encode()
        kept = merged("pyproject.toml", None, text)
        assert kept is None or b"addopts" not in kept
