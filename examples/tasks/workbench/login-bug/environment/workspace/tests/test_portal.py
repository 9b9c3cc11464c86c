from __future__ import annotations

from collections.abc import Iterator

import pytest

from portal import AddressTaken, LoginFailed, Portal, Sessions, Users


@pytest.fixture
def portal() -> Iterator[Portal]:
    users = Users(":memory:")
    yield Portal(users, Sessions())
    users.close()


def test_a_registered_user_can_log_in(portal: Portal) -> None:
    user = portal.register("ada@example.com", "correct horse")
    assert portal.log_in(None, "ada@example.com", "correct horse").user_id == user.id


def test_a_wrong_password_is_refused(portal: Portal) -> None:
    portal.register("ada@example.com", "correct horse")
    with pytest.raises(LoginFailed):
        portal.log_in(None, "ada@example.com", "Correct horse")


def test_an_address_has_one_account(portal: Portal) -> None:
    portal.register("ada@example.com", "correct horse")
    with pytest.raises(AddressTaken):
        portal.register("ada@example.com", "another")


def test_the_basket_survives_the_login(portal: Portal) -> None:
    portal.register("ada@example.com", "correct horse")
    visitor = portal.visit(None)
    visitor.data["basket"] = ["paper"]
    assert portal.log_in(visitor.id, "ada@example.com", "correct horse").data == {"basket": ["paper"]}


def test_a_session_ends_with_the_logout(portal: Portal) -> None:
    portal.register("ada@example.com", "correct horse")
    session = portal.log_in(None, "ada@example.com", "correct horse")
    portal.log_out(session.id)
    assert portal.visit(session.id).user_id is None
