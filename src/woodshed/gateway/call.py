"""call(): the one place from which anything is sent to a model. Interceptors, retries, and what failures mean."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from woodshed.errors import HarnessFault, ModelFault, ModelRateLimited, ModelRefused, ModelUnreachable, WoodshedError
from woodshed.gateway import completions, responses, wire
from woodshed.gateway.capture import SERVERS, level
from woodshed.gateway.capture.probe import Ask, Capturing, probe
from woodshed.gateway.failure import failure, unparsed
from woodshed.gateway.parsing import dumps
from woodshed.gateway.pool import Endpoint, Pools, Stay
from woodshed.interfaces import Interceptor, ModelRequest, ModelResponse
from woodshed.model import ModelSpec
from woodshed.model.exchange import UNPARSED
from woodshed.model.rollout import WORST, CaptureLevel
from woodshed.model.tokens import Tokens, flaws

_T = TypeVar("_T", ModelRequest, ModelResponse)

Weights = Callable[[], Awaitable[str | None]]
"""The version of the weights that the endpoint has now, as far as anybody announced one. Raises StoreFault."""
_Body = Callable[[ModelRequest, ModelSpec, int], dict[str, Any]]
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

    def wait_s(self, failed: int, fault: ModelFault, *, elsewhere: bool = False) -> float | None:
        """Seconds until the next try after ``failed`` tries; None when there is none.

        A try ``elsewhere`` need not wait for what this endpoint asked.
        """
        if failed >= self.tries or not fault.retryable:
            return None
        backoff: float = min(self.longest_s, self.first_s * 2.0 ** (failed - 1)) * (0.5 + 0.5 * self.chance())
        asked = (fault.retry_after_s if isinstance(fault, ModelRateLimited) and not elsewhere else None) or 0.0
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
    pools: Pools = field(default_factory=Pools)


async def call(
    request: ModelRequest, spec: ModelSpec, road: Road, witness: Witness, *, seed: int,
    known: ModelResponse | ModelFault | None = None, stay: Stay | None = None, weights: Weights | None = None,
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
        response = await _persist(request, spec, road, witness, seed, stay or Stay(), weights)
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
    request: ModelRequest, spec: ModelSpec, road: Road, witness: Witness, seed: int, stay: Stay,
    weights: Weights | None,
) -> ModelResponse:
    """Try until it works or patience ends. Cut off after a failed try, the CancelledError's cause is that fault."""
    failed, last = 0, None

    async def hold(left_s: float) -> None:
        if left_s > road.patience.longest_s:
            raise ModelRateLimited(f"{spec.name} at {spec.base_url}: it asked to be left alone", left_s)
        await road.patience.sleep(left_s)

    try:
        while True:
            try:
                # A try after a failed one has waited already, as long as it was told.
                async with road.pools.taken(spec, stay, hold=None if failed else hold) as endpoint:
                    return await _send(request, spec, road, seed, endpoint, weights)
            except ModelFault as fault:
                failed, last = failed + 1, fault
                wait_s = road.patience.wait_s(failed, fault, elsewhere=road.pools.elsewhere(spec))
                witness.failed(fault, wait_s)
                if wait_s is None:
                    raise
            await road.patience.sleep(wait_s)
    except asyncio.CancelledError as cut:
        cut.__cause__ = last
        raise


async def _send(
    request: ModelRequest, spec: ModelSpec, road: Road, seed: int, endpoint: Endpoint, weights: Weights | None
) -> ModelResponse:
    """One try, at one endpoint."""
    at = spec.at(endpoint.url)
    url, read = _completions(at), wire.answer
    body: _Body = partial(wire.body, thought=endpoint.thought or wire.THOUGHT)
    if responses.meant(at):
        url, body, read = at.base_url.rstrip("/"), responses.body, responses.answer
    elif completions.meant(at):
        body, read = completions.body, partial(completions.answer, chat=completions.chat_of(request, at))
    capturing = await captured_by(endpoint, at, road) if at.captures else None
    sent = body(request, at, seed)
    if capturing is not None:
        sent = capturing.body(sent, said=spec.sampling.said)
    version = await _version(spec, weights)
    started = time.perf_counter()
    status, content = await _exchange(url, sent, at, road)
    seconds = time.perf_counter() - started
    after = await _version(spec, weights)
    written = unparsed(status, content)
    data = wire.parsed(content) if written is None else {}
    response = read(content, seconds, data) if written is None else ModelResponse(written, finish_reason=UNPARSED)
    if response.reasoning:
        endpoint.thought = wire.thinks_in(data)
    response = replace(response, seconds=seconds, endpoint=endpoint.url if spec.others else None)
    announced = Tokens(policy_version=version, policy_after=after if after != version else None)
    if capturing is not None:
        return await _captured(response, capturing, data, _asking(at, road), sent, announced)
    return response if version is after is None else replace(response, tokens=announced)


async def _version(spec: ModelSpec, weights: Weights | None) -> str | None:
    return spec.policy_version if weights is None else await weights() or spec.policy_version


async def captured_by(endpoint: Endpoint, spec: ModelSpec, road: Road) -> Capturing:
    """How the endpoint is asked for tokens: it is probed once, by whoever needs it first. Raises ModelFault."""
    key = (spec.name, spec.capture, spec.vocabulary)
    async with endpoint.probing:
        if key not in endpoint.capturing:
            endpoint.capturing[key] = await _probed(spec, road)
        return endpoint.capturing[key]


async def _probed(spec: ModelSpec, road: Road) -> Capturing:
    server = None if spec.capture == "auto" else spec.capture
    if responses.meant(spec):
        if server not in (None, "plain"):
            raise ModelRefused(f"{spec.base_url}: token ids are asked for by chat and raw completions alone")
        return Capturing("plain", SERVERS["plain"], CaptureLevel.TEXT)

    async def complete(body: Mapping[str, Any]) -> Any:
        return wire.parsed((await _exchange(_completions(spec), body, spec, road))[1])

    return await probe(_asking(spec, road), complete, spec.name, server=server, raw=completions.meant(spec),
                       ids=spec.vocabulary)


async def _captured(
    response: ModelResponse, capturing: Capturing, answer: Mapping[str, Any], ask: Ask, sent: Mapping[str, Any],
    announced: Tokens,
) -> ModelResponse:
    """The answer with what the server told of its tokens, and what is wrong with that."""
    if response.finish_reason == UNPARSED:
        return replace(response, tokens=announced, sampling=wire.sampled(sent), flaws=(
            "the server could not parse what the model wrote, and told none of it (raw completions tell all)",))
    wrong = list[str]()
    try:
        tokens = await capturing.read(answer, ask)
    except ModelFault as fault:
        tokens = capturing.server.read(answer)
        wrong.append(f"the ids of its prompt could not be asked for ({type(fault).__name__}: {fault})")
    if tokens.policy_version is None:  # a server that tells a version of its own is believed
        tokens = replace(tokens, policy_version=announced.policy_version, policy_after=announced.policy_after)
    wrong += flaws(tokens, vocabulary=capturing.vocabulary, prompt_tokens=response.prompt_tokens,
                   completion_tokens=response.completion_tokens)
    if not wrong and WORST.index(level(tokens)) > WORST.index(capturing.found):
        wrong.append(f"{capturing.found.value} were told when the endpoint was probed, and now {level(tokens).value}")
    return replace(response, tokens=tokens, flaws=tuple(wrong), sampling=wire.sampled(sent))


def _completions(spec: ModelSpec) -> str:
    return spec.base_url.rstrip("/") + ("" if completions.meant(spec) else "/chat/completions")


def _asking(spec: ModelSpec, road: Road) -> Ask:
    """Asks paths from the server's root, over the same session. A question is tried again, and no model samples."""
    root = spec.base_url.rstrip("/")
    root = (root.rpartition("/")[0] if completions.meant(spec) else root).removesuffix("/v1")

    async def ask(path: str, body: Mapping[str, Any] | None) -> Any:
        for left in (2, 1, 0):
            try:
                return wire.parsed((await _exchange(root + path, body, spec, road))[1])
            except ModelFault as fault:
                if not left or not fault.retryable:
                    raise
            await road.patience.sleep(road.patience.first_s)
        raise AssertionError

    return ask


async def _exchange(
    url: str, body: Mapping[str, Any] | None, spec: ModelSpec, road: Road
) -> tuple[int, bytes]:
    """Status and content of one request's answer, by POST of a body or GET. The key is read now, and is in no message.

    Raises a ModelFault for every failure but an answer that the model wrote badly (see :func:`unparsed`).
    """
    key = _key(spec)
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    payload = None if body is None else dumps(body)
    try:
        async with road.session.request(
            "GET" if payload is None else "POST", url, data=payload, headers=headers, allow_redirects=False,
            proxy=_proxy(url), timeout=aiohttp.ClientTimeout(total=spec.timeout_s),
        ) as answer:
            content = await _bounded(answer)
            if answer.status >= 300 and unparsed(answer.status, content) is None:
                shown = content.replace(key.encode(), b"***") if key else content
                raise failure(answer.status, answer.headers.get, shown, spec, road.patience.now())
            return answer.status, content
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
