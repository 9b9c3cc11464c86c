"""Logging in works whatever case the address was written in, on old databases too."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from portal import AddressTaken, LoginFailed, Portal, Sessions, Users
from portal.passwords import hash_password

OLD_SCHEMA = "CREATE TABLE users (id INTEGER PRIMARY KEY, email TEXT NOT NULL UNIQUE, password TEXT NOT NULL)"
OLD_ROWS = [
    (3, "Ada@Example.COM", "first ada"),
    (5, "grace@example.com", "grace"),
    (8, "ada@example.com", "second ada"),
    (9, "ÉLODIE@example.com", "elodie"),
    (12, "Straße@example.com", "long road"),
    (13, "strasse@example.com", "short road"),
    (20, "GRACE@example.com", "second grace"),
]


@pytest.fixture
def portal() -> Iterator[Portal]:
    users = Users(":memory:")
    yield Portal(users, Sessions())
    users.close()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A database as the last release left it."""
    path = tmp_path / "users.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(OLD_SCHEMA)
        hashed = [(user_id, email, hash_password(password)) for user_id, email, password in OLD_ROWS]
        db.executemany("INSERT INTO users VALUES (?, ?, ?)", hashed)
    return path


def rows(path: Path, query: str) -> list[tuple[int, str, str]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


def logged_in(path: Path, email: str, password: str) -> int | None:
    """The id of the user that the database at ``path`` lets in; None when refused."""
    users = Users(path)
    try:
        return Portal(users, Sessions()).log_in(None, email, password).user_id
    except LoginFailed:
        return None
    finally:
        users.close()


def test_case_does_not_matter_for_logging_in(portal: Portal) -> None:
    """Every spelling of the address finds the account."""
    user = portal.register("Ada@Example.com", "correct horse")
    for spelling in ("Ada@Example.com", "ada@example.com", "  ada@Example.com ", "ada@example.com\n"):
        assert portal.log_in(None, spelling, "correct horse").user_id == user.id


def test_case_does_not_matter_for_registering(portal: Portal) -> None:
    """A second spelling is not a second account."""
    portal.register("Ada@Example.com", "correct horse")
    for spelling in ("Ada@Example.com", "ada@example.com", " ADA@example.com"):
        with pytest.raises(AddressTaken):
            portal.register(spelling, "another")


def test_letters_outside_ascii_have_cases_too(portal: Portal) -> None:
    """What SQLite's own lower() leaves alone is folded as well."""
    user = portal.register("Élodie@example.com", "correct horse")
    assert portal.log_in(None, "éLODIE@EXAMPLE.com", "correct horse").user_id == user.id
    with pytest.raises(AddressTaken):
        portal.register("élodie@example.com", "another")


def test_other_differences_make_other_accounts(portal: Portal) -> None:
    """Letters that only look or sound alike, dots and accents belong to different people."""
    addresses = ["straße@example.com", "strasse@example.com", "elodie@example.com", "élodie@example.com"]
    addresses += ["a.da@example.com", "ada@example.com", "ada+x@example.com", "a da@example.com", "a%@example.com"]
    made = [portal.register(address, f"password of {address}").id for address in addresses]
    assert len(set(made)) == len(addresses)
    for address, user_id in zip(addresses, made, strict=True):
        assert portal.log_in(None, address.title(), f"password of {address}").user_id == user_id


def test_the_address_is_kept_as_typed(portal: Portal) -> None:
    """Letters go to the spelling that the user chose, without the blanks around it."""
    assert portal.register(" Ada@Example.com\t", "correct horse").email == "Ada@Example.com"


def test_passwords_are_taken_literally(portal: Portal) -> None:
    """Case and blanks of a password count."""
    portal.register("ada@example.com", " Correct Horse ")
    for wrong in ("correct horse", "Correct Horse", " correct horse "):
        with pytest.raises(LoginFailed):
            portal.log_in(None, "ada@example.com", wrong)
    assert portal.log_in(None, "ada@example.com", " Correct Horse ").user_id is not None


def test_accounts_of_the_old_database_can_log_in(old: Path) -> None:
    """Rows in mixed case are found by any spelling."""
    assert logged_in(old, "élodie@EXAMPLE.com", "elodie") == 9
    assert logged_in(old, "ÉLODIE@example.com", "elodie") == 9
    assert logged_in(old, "STRASSE@example.com", "short road") == 13
    assert logged_in(old, "straße@example.com", "long road") == 12


def test_of_a_pair_the_first_account_counts(old: Path) -> None:
    """Both spellings lead to the account that was made first."""
    for spelling in ("Ada@Example.COM", "ada@example.com", "ADA@example.com"):
        assert logged_in(old, spelling, "first ada") == 3
        assert logged_in(old, spelling, "second ada") is None
    assert logged_in(old, "GRACE@example.com", "grace") == 5
    assert logged_in(old, "GRACE@example.com", "second grace") is None


def test_nobody_registers_over_an_old_account(old: Path) -> None:
    """The old rows take their addresses in every spelling."""
    users = Users(old)
    portal = Portal(users, Sessions())
    for spelling in ("ada@EXAMPLE.com", "Élodie@example.com", "Grace@Example.com"):
        with pytest.raises(AddressTaken):
            portal.register(spelling, "another")
    users.close()


def test_no_row_of_the_old_database_is_lost_or_changed(old: Path) -> None:
    """Opening twice, logging in and registering leave every old row with its id, address and password hash."""
    query = "SELECT id, email, password FROM users ORDER BY id"
    before = rows(old, query)
    for name in ("new@example.com", "newer@example.com"):
        users = Users(old)
        Portal(users, Sessions()).register(name, "password")
        users.close()
    after = rows(old, query)
    assert [row for row in after if row[0] <= 20] == before
    assert [row[1] for row in after if row[0] > 20] == ["new@example.com", "newer@example.com"]


def test_a_registration_survives_the_next_start(tmp_path: Path) -> None:
    """A database made by this release opens again and knows its accounts."""
    users = Users(tmp_path / "new.db")
    user = Portal(users, Sessions()).register("Élodie@Example.com", "elodie")
    users.close()
    assert logged_in(tmp_path / "new.db", "élodie@example.com", "elodie") == user.id
