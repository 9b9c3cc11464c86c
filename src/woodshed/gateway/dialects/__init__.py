"""Dialects of the gateway's server: what programs say over HTTP, and how they are answered. Pure; one module each.

A dialect turns a body into an :class:`Asked`, and a ModelResponse into its own shapes. Its module has the names of
:class:`Dialect`; ``server.py`` lists those that are spoken. What all of them read alike is in ``fields.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from woodshed.interfaces import ModelRequest, ModelResponse
from woodshed.model import Message


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it was understood. ``model`` is the name it asked for.

    ``follows`` is the id of an earlier answer that its conversation goes on from, after the first ``leading`` messages.
    ``again`` is what an answer repeats of the request; with ``remembered`` later requests may name the answer.
    """

    request: ModelRequest
    stream: bool = False
    usage: bool = False
    """A stream ends with what was used."""
    model: str = ""
    follows: str | None = None
    leading: int = 0
    remembered: bool = False
    again: Mapping[str, Any] = field(default_factory=dict)

    def after(self, past: Sequence[Message]) -> Asked:
        """The same, with the conversation that it goes on from."""
        own = tuple(self.request.messages)
        whole = (*own[:self.leading], *past, *own[self.leading:])
        return replace(self, request=replace(self.request, messages=whole))

    def conversation(self, response: ModelResponse) -> tuple[Message, ...]:
        """What a request that follows the answer goes on from: instructions are of one request alone."""
        said = Message(role="assistant", content=response.content, tool_calls=response.tool_calls,
                       reasoning=response.reasoning)
        return (*self.request.messages[self.leading:], said)


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

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(Failure(status, "invalid_request_error", message, param=param, code=code))


class Dialect(Protocol):
    """The names of a dialect's module."""

    @property
    def ALIVE(self) -> bytes:  # noqa: N802 (a constant of the module)
        """A sign of life in a stream that has begun."""

    @property
    def REQUEST_ID(self) -> str:  # noqa: N802
        """The header that names an answer."""

    def read(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Asked:
        """What ``body`` asks. Raises Refused."""

    def answer(self, response: ModelResponse, asked: Asked, stamp: Stamp) -> dict[str, Any]:
        """The whole answer."""

    def opening(self, response: ModelResponse | None, asked: Asked, stamp: Stamp) -> bytes:
        """The events by which a stream begins. None: there is no answer yet."""

    def stream(self, response: ModelResponse, asked: Asked, stamp: Stamp) -> Iterator[bytes]:
        """The answer as server-sent events, from the opening to the last one."""

    def failure(self, failure: Failure) -> dict[str, Any]:
        """A failure, in a body."""

    def broken(self, failure: Failure, asked: Asked, stamp: Stamp) -> bytes:
        """A failure, as the last event of a stream that has begun."""
