"""Every failure has one class, and each class says who broke it.

::

    WoodshedError
    ├── UsageError                cause None         the caller's input is wrong; the command exits 2
    │   ├── Missing               cause None         what was named is not there
    │   └── Conflict              cause None         what was asked contradicts what stands already
    ├── EnvironmentFault          environment        image, sandbox or host could not provide the world
    │   ├── SandboxDied           environment        the live sandbox is gone; never an agent's failure
    │   ├── ImageFault            environment        an image or a layer could not be prepared
    │   └── Unsupported           environment        the engine lacks a capability it was asked for
    ├── ModelFault                model_api          the model endpoint failed
    │   ├── ModelUnreachable      model_api          no connection, or the connection broke
    │   ├── ModelRateLimited      model_api          429 or overload; carries ``retry_after_s``
    │   ├── ModelRefused          model_api          a 4xx that no retry mends: key, name, request
    │   │   └── ContextExceeded   model_api          the conversation no longer fits; the loop stops with CONTEXT
    │   └── ModelGarbled          model_api          an answer that is not the protocol
    ├── HarnessFault              harness            our loop, or an external agent's wrapper, broke
    ├── VerifierFault             verifier           the verifier broke without the agent's doing
    ├── StoreFault                environment        the record could not be written
    │   └── Unreadable            environment        a stored row that this version does not understand
    ├── Cancelled                 cancelled          someone asked for the end
    └── Paused                    cause None         a run stopped itself, and says why; it can be resumed

``retryable`` and ``gradable`` are attributes of the class and false unless stated. An exception that is not one of
these is attributed by the :func:`boundary` it crosses; an unknown failure never gives a reward.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum


class Cause(StrEnum):
    """Who broke it. The first five make an attempt invalid; the last three belong to valid attempts."""

    ENVIRONMENT = "environment"
    MODEL_API = "model_api"
    HARNESS = "harness"
    VERIFIER = "verifier"
    CANCELLED = "cancelled"
    AGENT = "agent"
    TAMPER = "tamper"
    BUDGET = "budget"


INVALID_CAUSES = frozenset({Cause.ENVIRONMENT, Cause.MODEL_API, Cause.HARNESS, Cause.VERIFIER, Cause.CANCELLED})


class WoodshedError(Exception):
    """A failure with an owner. ``cause`` is None only where no attempt is concerned."""

    cause: Cause | None = None
    retryable: bool = False
    gradable: bool = False


class UsageError(WoodshedError):
    """The caller's input is wrong. The message names the file, the field and the remedy; the command exits 2."""

    def __init__(
        self, message: str, *, file: object | None = None, field: str | None = None, remedy: str | None = None
    ) -> None:
        self.message, self.file, self.field, self.remedy = message, file, field, remedy
        where = ": ".join(str(part) for part in (file, field) if part is not None)
        text = f"{where}: {message}" if where else message
        end = "" if text.endswith(("?", ".")) else "."
        super().__init__(f"{text}{end} {remedy}" if remedy else text)


class Missing(UsageError):
    """What was named is not there."""


class Conflict(UsageError):
    """What was asked contradicts what stands already."""


class EnvironmentFault(WoodshedError):
    """The image, the sandbox or the host could not provide the world the task declares."""

    cause = Cause.ENVIRONMENT
    retryable = True


class SandboxDied(EnvironmentFault):
    """The live sandbox is gone (its PID 1 ended). What the agent did before it is unknown."""


class ImageFault(EnvironmentFault):
    """An image, a layer or a requirement could not be prepared."""

    retryable = False


class Unsupported(EnvironmentFault):
    """The engine does not have the capability asked for; its name stands in the message."""

    retryable = False


class ModelFault(WoodshedError):
    """The model endpoint failed."""

    cause = Cause.MODEL_API
    retryable = True


class ModelUnreachable(ModelFault):
    """No connection to the endpoint, or it broke before the answer was complete."""


class ModelRateLimited(ModelFault):
    """The endpoint asks us to slow down (429, 503 overload)."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelRefused(ModelFault):
    """The endpoint rejects the request for good: wrong key, unknown model, bad request. ``status`` is HTTP's."""

    retryable = False
    status: int | None = None


class ContextExceeded(ModelRefused):
    """The conversation no longer fits the model's window. A loop ends with ``StopReason.CONTEXT``: no fault of ours."""


class ModelGarbled(ModelFault):
    """The endpoint's answer is not the protocol it speaks."""


class HarnessFault(WoodshedError):
    """The program that runs the loop broke, not the agent inside it."""

    cause = Cause.HARNESS


class VerifierFault(WoodshedError):
    """The verifier broke, with evidence that does not depend on the agent."""

    cause = Cause.VERIFIER


class StoreFault(WoodshedError):
    """A record could not be written or read (disk full, database locked or damaged)."""

    cause = Cause.ENVIRONMENT
    retryable = True


class Unreadable(StoreFault):
    """A row of the database is nothing that this version understands; the message names it and its field."""

    retryable = False


class Cancelled(WoodshedError):
    """Someone asked for the end; the attempt has no verdict of its own."""

    cause = Cause.CANCELLED


class Paused(WoodshedError):
    """A run begins nothing more, for the reason in the message. What was done is kept, and it can be resumed."""


_FAULTS: dict[Cause, type[WoodshedError]] = {
    Cause.ENVIRONMENT: EnvironmentFault,
    Cause.MODEL_API: ModelFault,
    Cause.HARNESS: HarnessFault,
    Cause.VERIFIER: VerifierFault,
}


@contextmanager
def boundary(owner: Cause, doing: str, *, usage: bool = False) -> Iterator[None]:
    """Whatever escapes has an owner: a fault with a cause passes unchanged, anything else is attributed to ``owner``.

    ``doing`` is a short phrase for the message ("preparing the image"). Cancellation becomes no fault: it passes.
    A UsageError passes, for whoever asked to mend it; with ``usage``, inside an attempt, it is attributed as well and
    not retryable. Raises the fault class of ``owner`` with the original exception as its ``__cause__``.
    """
    try:
        yield
    except UsageError as error:
        if not usage:
            raise
        fault = _FAULTS[owner](f"{doing}: {error}")
        fault.retryable = False
        raise fault from error
    except (WoodshedError, asyncio.CancelledError, KeyboardInterrupt, SystemExit):
        raise
    except Exception as error:
        raise _FAULTS[owner](f"{doing}: {type(error).__name__}: {error}") from error
