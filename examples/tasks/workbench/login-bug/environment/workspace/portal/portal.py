"""Register, log in, log out."""

from __future__ import annotations

from portal import passwords
from portal.sessions import Session, Sessions
from portal.users import User, Users


class LoginFailed(Exception):
    """The message is shown to whoever tried."""


class Portal:
    """What the web framework calls. ``session_id`` is the value of the browser's cookie, if it sent one."""

    def __init__(self, users: Users, sessions: Sessions) -> None:
        self._users = users
        self._sessions = sessions

    def register(self, email: str, password: str) -> User:
        """Make an account. Raises :class:`AddressTaken`."""
        return self._users.add(email, passwords.hash_password(password))

    def visit(self, session_id: str | None) -> Session:
        """The browser's session, or a new one."""
        return self._sessions.find(session_id) or self._sessions.open()

    def log_in(self, session_id: str | None, email: str, password: str) -> Session:
        """The session of the user who is now logged in. Raises :class:`LoginFailed`."""
        user = self._users.by_email(email)
        if user is None:
            raise LoginFailed("There is no account with this address.")
        if not passwords.check_password(password, user.password):
            raise LoginFailed("The password is wrong.")
        session = self.visit(session_id)
        session.user_id = user.id
        return session

    def log_out(self, session_id: str) -> None:
        """End the session."""
        self._sessions.close(session_id)
