"""Accounts and sessions of the customer portal."""

from portal.portal import LoginFailed, Portal
from portal.sessions import Session, Sessions
from portal.users import AddressTaken, User, Users

__all__ = ["AddressTaken", "LoginFailed", "Portal", "Session", "Sessions", "User", "Users"]
