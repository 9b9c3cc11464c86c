"""call(): the one place from which anything is sent to a model. Interceptors, retries, and what failures mean."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from woodshed.errors import HarnessFault, ModelFault, ModelRateLimited, ModelRefused, ModelUnreachable, WoodshedError
from woodshed.gateway import responses, wire
from woodshed.gateway.failure import failure, unparsed
from woodshed.interfaces import Interceptor, ModelRequest, ModelResponse
from woodshed.model import ModelSpec

_T = TypeVar("_T", ModelRequest, ModelResponse)

ANSWER_BYTES = 16_000_000  # far above any honest answer: 2,048 tokens with logprobs and ids are under 1 MB


@dataclass(frozen=True, slots=True)
class Patience:
    """How failures worth retrying are retried: exponential backoff with full jitter, never past ``longest_s``.

    A Retry-After is a floor for the wait. One longer than ``longest_s`` ends the call at once with the
    ModelRateLimited that carries it: asking earlier than told would be a retry storm. Clock and chance can be replaced.
    """

    tries: int = 6
    first_s: float = 0.5
    longest_s: float = 60.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    now: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random

    def wait_s(self, failed: int, fault: ModelFault) -> float | None:
        """Seconds until the next try after ``failed`` tries; None when there is none."""
        if failed >= self.tries or not fault.retryable:
            return None
        backoff: float = min(self.longest_s, self.first_s * 2.0 ** (failed - 1)) * (0.5 + 0.5 * self.chance())
        asked = (fault.retry_after_s if isinstance(fault, ModelRateLimited) else None) or 0.0
        return None if asked > self.longest_s else max(backoff, asked + 0.1 * backoff if asked else 0.0)


class Witness(Protocol):
    """Is told what truly leaves and what truly comes, at the moment it does."""

    def sending(self, request: ModelRequest) -> None:
        """This request leaves now, as the interceptors made it."""

    def failed(self, fault: ModelFault, again_in_s: float | None) -> None:
        """A try failed; the next one is in ``again_in_s``, or there is none."""

    def received(self, response: ModelResponse) -> None:
        """This answer came, before any interceptor touched it."""

    async def kept(self) -> None:
        """What was told so far can be relied upon. Raises StoreFault, Cancelled; then nothing is sent, or used."""

    def recalled(self, request: ModelRequest) -> None:
        """This request would have left, had it not been answered in an earlier execution."""


@dataclass(frozen=True, slots=True)
class Road:
    """What calls of one gateway share."""

    session: aiohttp.ClientSession
    interceptors: Sequence[Interceptor] = ()
    patience: Patience = field(default_factory=Patience)


async def call(
    request: ModelRequest, spec: ModelSpec, road: Road, witness: Witness, *, seed: int,
    known: ModelResponse | ModelFault | None = None,
) -> ModelResponse:
    """The model's answer to ``request``, as the interceptors let it through.

    What is ``known`` of the same call from an earlier execution takes the place of sending it; interceptors see both.
    Raises a ModelFault when the endpoint fails for good or too often, and HarnessFault when an interceptor breaks: then
    nothing is sent, or nothing of the answer is used.
    """
    for interceptor in road.interceptors:
        request = await _guarded(interceptor, ModelRequest, interceptor.before, request)
    if known is None:
        witness.sending(request)
        await witness.kept()
        response = await _persist(request, spec, road, witness, seed)
        witness.received(response)
        await witness.kept()
    else:
        witness.recalled(request)
        if isinstance(known, ModelFault):
            raise known
        response = known
    for interceptor in reversed(road.interceptors):
        response = await _guarded(interceptor, ModelResponse, interceptor.after, request, response)
    return response


async def _guarded(interceptor: Interceptor, kind: type[_T], step: Callable[..., Awaitable[_T]], *given: object) -> _T:
    """What the interceptor's step made. Whatever else happens blocks the call."""
    try:
        made = await step(*given)
        if not isinstance(made, kind):
            raise TypeError
    except WoodshedError:
        raise
    except Exception as error:
        # Only the type: the text of a masking error may hold what was to be masked.
        name = type(interceptor).__name__
        raise HarnessFault(f"interceptor {name} failed ({type(error).__name__}); the model call was blocked") from None
    return made


async def _persist(
    request: ModelRequest, spec: ModelSpec, road: Road, witness: Witness, seed: int
) -> ModelResponse:
    """Try until it works or patience ends. Cut off after a failed try, the CancelledError's cause is that fault."""
    failed, last = 0, None
    try:
        while True:
            try:
                return await _send(request, spec, road, seed)
            except ModelFault as fault:
                failed, last = failed + 1, fault
                wait_s = road.patience.wait_s(failed, fault)
                witness.failed(fault, wait_s)
                if wait_s is None:
                    raise
            await road.patience.sleep(wait_s)
    except asyncio.CancelledError as cut:
        cut.__cause__ = last
        raise


async def _send(request: ModelRequest, spec: ModelSpec, road: Road, seed: int) -> ModelResponse:
    """One try. The key is read now, and stands in no message."""
    started, key = time.perf_counter(), _key(spec)
    url, body, read = spec.base_url.rstrip("/") + "/chat/completions", wire.body, wire.answer
    if responses.meant(spec):
        url, body, read = spec.base_url.rstrip("/"), responses.body, responses.answer
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    try:
        payload = json.dumps(body(request, spec, seed), ensure_ascii=False, allow_nan=False).encode("utf-8")
        async with road.session.post(
            url, data=payload, headers=headers, allow_redirects=False, proxy=_proxy(url),
            timeout=aiohttp.ClientTimeout(total=spec.timeout_s),
        ) as answer:
            content = await _bounded(answer)
            if (written := unparsed(answer.status, content)) is not None:
                return ModelResponse(written, finish_reason="unparsed", seconds=time.perf_counter() - started)
            if answer.status >= 300:
                shown = content.replace(key.encode(), b"***") if key else content
                raise failure(answer.status, answer.headers.get, shown, spec, road.patience.now())
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
        raise ModelRefused(f"base_url {spec.base_url!r} is not an http(s) address. Example: "
                           "http://127.0.0.1:8000/v1") from error
    except aiohttp.ClientConnectorCertificateError as error:
        raise ModelRefused(f"{spec.base_url}: its certificate is not trusted: {error.certificate_error}") from None
    except TimeoutError:
        raise ModelUnreachable(f"{spec.name} at {spec.base_url}: no answer within {spec.timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise ModelUnreachable(f"{spec.name} at {spec.base_url}: {type(error).__name__}: {error}. "
                               "Is the server running, and is base_url right?") from None
    return read(content, time.perf_counter() - started)


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > ANSWER_BYTES:
            answer.close()
            raise ModelUnreachable(f"the answer is longer than {ANSWER_BYTES} bytes and was cut off")
        parts.append(part)
    return b"".join(parts)


def _key(spec: ModelSpec) -> str | None:
    if spec.key_variable is None:
        return None
    key = os.environ.get(spec.key_variable, "").strip()
    if not key:
        raise ModelRefused(f"the environment variable {spec.key_variable} is empty; it must hold the key of "
                           f"{spec.base_url}")
    if not (key.isascii() and key.isprintable()):
        raise ModelRefused(f"the environment variable {spec.key_variable} holds characters that no key has")
    return key


def _proxy(url: str) -> str | None:
    """The proxy that the usual variables name for ``url``. (aiohttp's own trust_env would also send ~/.netrc.)"""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in ("localhost", "::1") or host.startswith("127.") or proxy_bypass(parts.netloc):
        return None
    return getproxies().get(parts.scheme)
