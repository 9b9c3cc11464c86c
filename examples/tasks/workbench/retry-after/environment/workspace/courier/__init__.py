"""courier: an HTTP client that tries again politely."""

from courier.backoff import Backoff
from courier.client import Client
from courier.clock import Clock, SystemClock
from courier.errors import RetriesExhausted
from courier.transport import Request, Response, Transport, UrllibTransport

__all__ = [
    "Backoff",
    "Client",
    "Clock",
    "Request",
    "Response",
    "RetriesExhausted",
    "SystemClock",
    "Transport",
    "UrllibTransport",
]
