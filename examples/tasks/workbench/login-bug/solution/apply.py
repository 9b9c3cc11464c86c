"""Edit sessions.py and portal.py in place."""

from __future__ import annotations

from pathlib import Path

PORTAL = Path("/workspace/portal")


def replace(name: str, old: str, new: str) -> None:
    path = PORTAL / name
    text = path.read_text()
    assert text.count(old) == 1, f"{name}: {old!r}"
    path.write_text(text.replace(old, new))


replace(
    "sessions.py",
    "    def close(self, session_id: str) -> None:",
    '''    def renew(self, session: Session) -> Session:
        """The same data under a new id; the old id is dead."""
        self.close(session.id)
        renewed = self.open()
        renewed.data = session.data
        return renewed

    def close(self, session_id: str) -> None:''',
)
replace(
    "portal.py",
    '''        if user is None:
            raise LoginFailed("There is no account with this address.")
        if not passwords.check_password(password, user.password):
            raise LoginFailed("The password is wrong.")
        session = self.visit(session_id)
''',
    '''        # An unknown address is checked as well, so that the time tells nothing.
        matches = passwords.check_password(password, user.password if user else self._nobody)
        if user is None or not matches:
            raise LoginFailed("The address or the password is wrong.")
        session = self._sessions.renew(self.visit(session_id))
''',
)
replace(
    "portal.py",
    "        self._sessions = sessions\n",
    "        self._sessions = sessions\n        self._nobody = passwords.hash_password(secrets.token_hex())\n",
)
replace(
    "portal.py",
    "from portal import passwords\n",
    "import secrets\n\nfrom portal import passwords\n",
)
