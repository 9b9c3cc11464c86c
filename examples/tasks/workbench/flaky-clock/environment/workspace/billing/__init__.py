"""Subscriptions, due dates and reminders."""

from billing.office import Office
from billing.subscription import Subscription

__all__ = ["Office", "Subscription"]
