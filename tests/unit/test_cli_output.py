"""What commands print of texts that others chose."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from rich.console import Console
from rich.text import Text

from woodshed.cli.output import emit_json, plain, visible

HOSTILE = "\x1b]0;title\x07 \x1b[2J\x9b1m \x7f\r\n\ttab [bold]no markup[/] \udcff é 木"


def test_no_control_character_reaches_the_terminal() -> None:
    """Escape sequences of others are shown as pictures; line ends, tabs and letters stay."""
    shown = visible(HOSTILE)
    assert not any((ord(sign) < 32 and sign not in "\n\t") or 0x7F <= ord(sign) < 0xA0 for sign in shown)
    assert "\n\ttab" in shown
    assert shown.endswith("? é 木")
    assert visible("a\nb\tc") == "a\nb\tc"


def test_nothing_of_it_is_markup() -> None:
    """Square brackets are printed as they stand."""
    assert Text.from_markup(plain(HOSTILE)).plain == visible(HOSTILE)
    Console(quiet=True).print(plain("[/nonsense]"))


def test_names_that_are_no_unicode_survive_json(capsys: pytest.CaptureFixture[str]) -> None:
    """What --json prints reads back as itself, half surrogate pairs included."""
    emit_json({"path": HOSTILE})
    assert json.loads(capsys.readouterr().out) == {"path": HOSTILE}


def test_json_needs_no_unicode_terminal() -> None:
    """A stream that only takes ASCII gets the same object."""
    code = "from woodshed.cli.output import emit_json; emit_json({'word': '木'})"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONIOENCODING": "ascii"}, capture_output=True,
                          check=True)
    assert json.loads(done.stdout) == {"word": "木"}
