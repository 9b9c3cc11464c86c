"""What the review found stays found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from portal import LoginFailed, Portal, Sessions, Users, passwords


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


@pytest.fixture
def portal(sessions: Sessions) -> Iterator[Portal]:
    users = Users(":memory:")
    portal = Portal(users, sessions)
    portal.register("ada@example.com", "correct horse")
    portal.register("grace@example.com", "battery staple")
    yield portal
    users.close()


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The passwords that were run through the slow hash."""
    seen: list[bytes] = []
    slow = passwords.hashlib.scrypt

    def watched(password: bytes, **options: int) -> bytes:
        seen.append(password)
        return slow(password, **options)

    monkeypatch.setattr(passwords.hashlib, "scrypt", watched)
    return seen


def failure(portal: Portal, email: str, password: str) -> str:
    with pytest.raises(LoginFailed) as caught:
        portal.log_in(None, email, password)
    return str(caught.value)


def test_the_old_id_is_dead(portal: Portal, sessions: Sessions) -> None:
    """Whoever knows the old id, perhaps because they planted it, finds neither the user nor the basket."""
    visitor = portal.visit(None)
    planted = visitor.id
    visitor.data["basket"] = ["paper"]
    session = portal.log_in(planted, "ada@example.com", "correct horse")
    assert session.id != planted
    assert sessions.find(planted) is None
    stranger = portal.visit(planted)
    assert stranger.user_id is None
    assert stranger.data == {}
    assert stranger.id not in (planted, session.id)


def test_the_basket_moves_along(portal: Portal) -> None:
    """What the visitor put into the basket is there after the login."""
    visitor = portal.visit(None)
    visitor.data["basket"] = ["paper", "pens"]
    session = portal.log_in(visitor.id, "ada@example.com", "correct horse")
    assert session.data == {"basket": ["paper", "pens"]}
    assert portal.visit(session.id).data == {"basket": ["paper", "pens"]}


def test_logging_in_again_changes_the_id_too(portal: Portal, sessions: Sessions) -> None:
    """A second login, as somebody else, starts from a fresh id as well."""
    first = portal.log_in(None, "ada@example.com", "correct horse").id
    second = portal.log_in(first, "grace@example.com", "battery staple")
    assert second.id != first
    assert sessions.find(first) is None


def test_an_unknown_cookie_is_no_session_id(portal: Portal, sessions: Sessions) -> None:
    """A value that the browser made up never becomes an id."""
    session = portal.log_in("made-up", "ada@example.com", "correct horse")
    assert session.id != "made-up"
    assert sessions.find("made-up") is None


def test_a_failed_login_changes_nothing(portal: Portal) -> None:
    """The visitor keeps session and basket after a typing error."""
    visitor = portal.visit(None)
    kept_id = visitor.id
    visitor.data["basket"] = ["paper"]
    for email in ("ada@example.com", "nobody@example.com"):
        with pytest.raises(LoginFailed):
            portal.log_in(kept_id, email, "wrong")
    assert portal.visit(kept_id).id == kept_id
    assert portal.visit(kept_id).data == {"basket": ["paper"]}
    assert portal.visit(kept_id).user_id is None


def test_the_message_does_not_tell_who_has_an_account(portal: Portal) -> None:
    """Unknown address and wrong password read the same."""
    assert failure(portal, "nobody@example.com", "wrong") == failure(portal, "ada@example.com", "wrong")


def test_an_unknown_address_costs_one_hash_too(portal: Portal, hashed: list[bytes]) -> None:
    """The slow hash runs once for the typed password, whether the account exists or not."""
    failure(portal, "ada@example.com", "wrong one")
    assert hashed == [b"wrong one"]
    failure(portal, "nobody@example.com", "wrong two")
    assert hashed == [b"wrong one", b"wrong two"]


def test_no_password_opens_an_unknown_account(portal: Portal) -> None:
    """The check that is made for show never succeeds."""
    for password in ("", "correct horse", "password", "dummy", "x"):
        failure(portal, "nobody@example.com", password)


def test_a_session_ends_with_the_logout(portal: Portal, sessions: Sessions) -> None:
    """Logging out kills the new id."""
    session_id = portal.log_in(None, "ada@example.com", "correct horse").id
    portal.log_out(session_id)
    assert sessions.find(session_id) is None
