from __future__ import annotations

from datetime import date
from pathlib import Path

from contacts import Contact, read_contacts


def test_good_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("email,name,born,notes\nada@example.com,Ada Byron,1815-12-10,\ngrace@example.com,Grace Hopper,,x\n")
    assert read_contacts(path).contacts == [
        Contact("ada@example.com", "Ada Byron", date(1815, 12, 10), ""),
        Contact("grace@example.com", "Grace Hopper", None, "x"),
    ]
