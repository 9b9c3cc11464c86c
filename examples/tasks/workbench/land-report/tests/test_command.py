"""The command works for other quarters and other data, and leaves no half report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ORDERS = "order,revision,shop,placed_at,status,currency,amount"
FILES = {
    "orders-2027-03.csv": [
        "A1,1,oslo,2027-04-01T00:30:00+02:00,paid,EUR,10.00",  # 31 March in UTC
        "A2,1,oslo,2027-03-31T20:30:00-05:00,paid,EUR,20.00",  # 1 April in UTC
        "A3,1,oslo,2027-04-10T12:00:00+02:00,paid,NOK,100.00",
        "A4,1,oslo,2027-04-11T12:00:00+02:00,paid,EUR,7.77",
    ],
    "orders-2027-04.csv": [
        "A4,3,oslo,2027-04-11T12:00:00+02:00,cancelled,EUR,7.77",
        "A4,2,oslo,2027-04-11T12:00:00+02:00,paid,EUR,8.88",
        "A3,10,oslo,2027-04-10T12:00:00+02:00,shipped,NOK,200.00",
        "A3,9,oslo,2027-04-10T12:00:00+02:00,shipped,NOK,300.00",
        "A5,1,bern,2027-07-01T01:59:59+02:00,paid,EUR,0.99",  # 30 June in UTC
        "A6,1,bern,2027-07-01T02:00:00+02:00,paid,EUR,500.00",  # July in UTC
    ],
    "orders-late.csv": ["A7,1,rome,2026-12-30T12:00:00+01:00,cancelled,EUR,30.00"],
}
REFUNDS = ["A7,2027-06-30T23:59:59Z,15.00", "A2,2027-07-01T00:00:00Z,20.00", "A3,2027-05-02T10:00:00Z,0.10"]
RATES = ["2027-04,NOK,0.08505", "2027-05,NOK,0.085"] + [f"2027-{month:02},EUR,1" for month in range(3, 8)]
EXPECTED = {
    "oslo": {"orders": 2, "gross_cents": 2000 + 1701, "refunds_cents": 1, "net_cents": 3700},
    "bern": {"orders": 1, "gross_cents": 99, "refunds_cents": 0, "net_cents": 99},
    "rome": {"orders": 0, "gross_cents": 0, "refunds_cents": 1500, "net_cents": -1500},
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name, lines in FILES.items():
        write(folder / name, ORDERS, lines)
    write(folder / "refunds.csv", "order,refunded_at,amount", REFUNDS)
    write(folder / "rates.csv", "month,currency,eur", RATES)
    return folder


def write(path: Path, header: str, lines: list[str]) -> None:
    path.write_text("\n".join([header, *lines]) + "\n")


def command(*words: object, cwd: Path = Path("/workspace")) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": "/workspace", "PATH": "/usr/bin:/bin"}
    argv = [sys.executable, "-m", "reporting", *map(str, words)]
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True)


def report(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def test_another_quarter_is_reported_by_the_same_rules(data: Path, tmp_path: Path) -> None:
    """UTC quarters, highest revision by number, refunds by their own date, each line rounded by itself."""
    out = tmp_path / "made" / "by" / "the command"
    done = command("2027-q2", out, "--data", data)
    assert done.returncode == 0, done.stderr
    found = report(out / "2027-q2.json")
    assert found["quarter"] == "2027-Q2"
    assert found["shops"] == EXPECTED
    assert found["total"] == {key: sum(row[key] for row in EXPECTED.values()) for key in EXPECTED["oslo"]}
    assert [path.name for path in out.iterdir()] == ["2027-q2.json"]


def test_the_data_folder_is_data_by_default(data: Path, tmp_path: Path) -> None:
    """Without --data, the folder `data` of the current directory is read."""
    done = command("2027-q2", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert report(tmp_path / "out" / "2027-q2.json")["shops"] == EXPECTED


def test_a_new_report_replaces_the_old_one(data: Path, tmp_path: Path) -> None:
    """Running again gives the same file; other reports stay."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "2027-q1.json").write_text("{}")
    (out / "2027-q2.json").write_text("an older and much longer report" * 100)
    assert command("2027-q2", out, "--data", data).returncode == 0
    assert report(out / "2027-q2.json")["shops"] == EXPECTED
    assert sorted(path.name for path in out.iterdir()) == ["2027-q1.json", "2027-q2.json"]


def test_bad_data_leaves_the_folder_as_it_was(data: Path, tmp_path: Path) -> None:
    """A missing rate, an unknown order, an amount that is none: a message and no traceback, a status, and no change."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "2027-q2.json").write_text("the report of yesterday")
    damages = [
        ("rates.csv", "2027-04,NOK,0.08505", "2027-04,SEK,0.08505"),
        ("refunds.csv", "A7,2027-06-30", "A77,2027-06-30"),
        ("orders-2027-03.csv", "EUR,20.00", "EUR,twenty"),
        ("orders-2027-03.csv", "2027-03-31T20:30:00-05:00", "yesterday"),
    ]
    for name, old, new in damages:
        good = (data / name).read_text()
        assert old in good
        (data / name).write_text(good.replace(old, new))
        refused(command("2027-q2", out, "--data", data), out)
        (data / name).write_text(good)
    (data / "rates.csv").unlink()
    refused(command("2027-q2", out, "--data", data), out)


def refused(done: subprocess.CompletedProcess[str], out: Path) -> None:
    assert done.returncode != 0
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr
    assert [path.name for path in out.iterdir()] == ["2027-q2.json"]
    assert (out / "2027-q2.json").read_text() == "the report of yesterday"


def test_a_quarter_that_is_none_is_refused(data: Path, tmp_path: Path) -> None:
    """Neither a fifth quarter nor a month makes a file."""
    for quarter in ("2027-q5", "2027-q0", "2027-04", "q2"):
        assert command(quarter, tmp_path / "out", "--data", data).returncode != 0
        assert not list(tmp_path.glob("out/*"))
