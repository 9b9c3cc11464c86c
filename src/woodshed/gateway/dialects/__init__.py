"""Dialects of the gateway's server: what programs say over HTTP, and how they are answered. Pure; one module each.

A dialect turns a body into an :class:`Asked`, and a ModelResponse into its own shapes. Its module has the names of
:class:`Dialect`; ``server.py`` lists those that are spoken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from woodshed.interfaces import ModelRequest, ModelResponse


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it was understood. ``model`` is the name it asked for."""

    request: ModelRequest
    stream: bool = False
    usage: bool = False
    """A stream ends with what was used."""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What makes an answer this one: its id without prefix, seconds since the epoch, and the attempt's model."""

    id: str
    at: int
    model: str


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer that is none. ``again``: asking once more may help. ``after_s``: not before so many seconds."""

    status: int
    kind: str
    message: str
    code: str | None = None
    param: str | None = None
    again: bool = False
    after_s: float | None = None


class Denied(Exception):
    """A request is not served, for what ``failure`` says."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Refused(Denied):
    """The body is no request of the dialect, or asks for what is not served."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(Failure(status, "invalid_request_error", message, param=param))


class Dialect(Protocol):
    """The functions of a dialect's module."""

    def read(self, body: Mapping[str, Any]) -> Asked:
        """What ``body`` asks. Raises Refused."""

    def answer(self, response: ModelResponse, stamp: Stamp) -> dict[str, Any]:
        """The whole answer."""

    def stream(self, response: ModelResponse, asked: Asked, stamp: Stamp) -> Iterator[bytes]:
        """The same answer as server-sent events, to the last one."""

    def failure(self, failure: Failure) -> dict[str, Any]:
        """A failure, in a body."""

    def broken(self, failure: Failure) -> bytes:
        """A failure, as the last event of a stream that has begun."""
