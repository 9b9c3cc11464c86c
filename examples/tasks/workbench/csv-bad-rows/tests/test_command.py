"""The command writes both files and says by its status how it went."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

GOOD = "ada@example.com,Ada Byron,1815-12-10,\"a\nb\"\n"


def command(tmp_path: Path, content: bytes | None) -> subprocess.CompletedProcess[str]:
    if content is not None:
        (tmp_path / "list.csv").write_bytes(content)
    words = [str(tmp_path / "list.csv"), "--out", str(tmp_path / "out.jsonl"), "--errors", str(tmp_path / "errors.csv")]
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PYTHONUTF8": "0"}
    argv = [sys.executable, "-m", "contacts", *words]
    return subprocess.run(argv, cwd="/workspace", env=env, capture_output=True, text=True)


def written(tmp_path: Path) -> list[dict[str, str | None]]:
    return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").split("\n") if line]


def errors(tmp_path: Path) -> list[list[str]]:
    with (tmp_path / "errors.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_a_clean_list_exits_with_0(tmp_path: Path) -> None:
    """All contacts are written, and an error file with nothing but its header."""
    done = command(tmp_path, f"email,name,born,notes\n{GOOD}zoe@example.com,Zoë,,\n".encode())
    assert done.returncode == 0, done.stderr
    assert written(tmp_path) == [
        {"email": "ada@example.com", "name": "Ada Byron", "born": "1815-12-10", "notes": "a\nb"},
        {"email": "zoe@example.com", "name": "Zoë", "born": None, "notes": ""},
    ]
    assert errors(tmp_path) == [["line", "reason"]]


def test_bad_rows_exit_with_1(tmp_path: Path) -> None:
    """Good rows are written all the same; reasons with commas and quotes survive the CSV."""
    content = f'email,name,born,notes\nbad\n{GOOD}"no, ""address""",Name,,\nj@example.com,'.encode() + b"J\xfcrgen,,\n"
    done = command(tmp_path, content)
    assert done.returncode == 1, done.stderr
    assert [row["email"] for row in written(tmp_path)] == ["ada@example.com"]
    rows = errors(tmp_path)
    assert rows[0] == ["line", "reason"]
    assert [row[0] for row in rows[1:]] == ["2", "5", "6"]
    assert (rows[1][1], rows[3][1]) == ("expected 4 fields, found 1", "not valid UTF-8")
    assert all(len(row) == 2 for row in rows)


def test_an_unreadable_file_exits_with_2(tmp_path: Path) -> None:
    """One line on stderr, and no file is written."""
    for content in (None, b"", b"a,b\n1,2\n"):
        done = command(tmp_path, content)
        assert done.returncode == 2, content
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "out.jsonl").exists()
        assert not (tmp_path / "errors.csv").exists()
