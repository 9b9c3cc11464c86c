"""HTTP to registries: tokens asked for as they say, redirects followed without them, trouble tried again.

Sources: OCI Distribution Specification 1.1; the distribution project's "Token Authentication Specification"; RFC 9110
(Retry-After, redirects, ranges).
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import closing, suppress
from email.utils import parsedate_to_datetime
from time import sleep
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from woodshed.errors import EnvironmentFault, ImageFault
from woodshed.sandbox.images import credentials, roads
from woodshed.settings import setting

TRIES = 5
_TIMEOUT_S, _LONGEST_WAIT_S = 30.0, 60.0
_PATIENCE_S, _LEAST_BYTES = 60.0, 16 << 10
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5
_AGAIN = (408, 429, 500, 502, 503, 504)
_PARAMETER = re.compile(r'([a-zA-Z_]+)="([^"]*)"')
_TOKEN_BYTES = 1 << 20
_BROKEN = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError, OSError)


class Refused(Exception):
    """A registry says no: a status, and nothing to be tried again."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Web:
    """Talks to the registry at ``base`` (``https://host``), in any number of threads."""

    def __init__(self, base: str, registry: str, scope: str) -> None:
        """``scope``: what a token is asked for where the registry names none. Raises UsageError for damaged logins."""
        self.base, self._registry, self._scope = base, registry, scope
        self._known = credentials.find(registry)
        self._authorization = ""
        self._guard = threading.Lock()
        self._opener = roads.opener(urlsplit(base).hostname or "")

    def open(self, path: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """The answer, of a status 2xx. Raises Refused, EnvironmentFault after :data:`TRIES` tries."""
        why = ""
        for count in range(TRIES):
            wait = 0.5 * 2**count
            try:
                return self._authorized(self.base + path, headers)
            except urllib.error.HTTPError as error:
                with closing(error):
                    if error.code not in _AGAIN:
                        raise Refused(error.code, _told(error)) from None
                    why, wait = f"it answers {error.code} {error.reason}", _asked(error, wait)
            except _BROKEN as error:
                if isinstance(elsewhere := getattr(error, "reason", error), roads.Elsewhere):
                    raise Refused(310, str(elsewhere)) from None
                reason = getattr(error, "reason", error)
                why = f"{type(reason).__name__}: {reason}" if not isinstance(reason, str) else reason
                if isinstance(reason, ssl.SSLCertVerificationError | socket.gaierror):
                    break  # no patience mends a certificate or a name
            if count < TRIES - 1:
                sleep(wait)
        raise EnvironmentFault(f"{self.base} cannot be reached: {why}")

    def _authorized(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        with self._guard:
            before = self._authorization
        try:
            return self._followed(url, headers, before)
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
            error.close()
            challenge = error.headers.get("WWW-Authenticate", "")
        with self._guard:
            if self._authorization == before:
                self._authorization = self._answer(challenge)
            return self._followed(url, headers, self._authorization)

    def _followed(self, url: str, headers: Mapping[str, str], authorization: str) -> http.client.HTTPResponse:
        home = urlsplit(url).netloc
        for _ in range(_MOST_REDIRECTS + 1):
            check(url)
            request = urllib.request.Request(url, headers={"User-Agent": "woodshed", **headers})  # noqa: S310 (checked)
            if authorization and urlsplit(url).netloc == home:
                request.add_header("Authorization", authorization)
            try:
                answer = self._opener.open(request, timeout=_TIMEOUT_S)
                assert isinstance(answer, http.client.HTTPResponse)
                return answer
            except urllib.error.HTTPError as error:
                target = error.headers.get("Location")
                if error.code == 401 and urlsplit(url).netloc != home:
                    error.close()  # whom it redirects to is not asked how we are to be known, nor told
                    raise Refused(310, f"{urlsplit(url).hostname}, to which it redirects, wants a login") from None
                if error.code not in _REDIRECTS or not target:
                    raise
                error.close()
                secure, url = url.startswith("https:"), urljoin(url, target)
                if secure and not url.startswith("https:"):
                    raise Refused(error.code, "it redirects from https to http") from None
        raise Refused(310, "it redirects in circles")

    # -- who we are ----------------------------------------------------------------------------------------------------

    def _answer(self, challenge: str) -> str:
        """What to send after a 401 with ``challenge``. Raises Refused, and ImageFault where a login is missing."""
        kind, _, rest = challenge.strip().partition(" ")
        login = self._known.login
        if kind.lower() == "basic":
            if login is None:
                raise ImageFault(f"{self._registry} wants a login{self._hint()}")
            return login.basic()
        if kind.lower() != "bearer":
            raise Refused(401, f"it wants {kind or 'something'} to know who asks, which is not supported")
        told = dict(_PARAMETER.findall(rest))
        if not told.get("realm"):
            raise Refused(401, "it names no place where a token can be had")
        query = {"service": told.get("service", ""), "scope": told.get("scope") or self._scope}
        realm = told["realm"]
        if self.base.startswith("https:") and not realm.startswith("https://"):
            raise Refused(401, "it wants tokens to be asked for without TLS")
        url = realm + ("&" if "?" in realm else "?") + urlencode({key: text for key, text in query.items() if text})
        try:
            with closing(self._followed(url, {"Accept": "application/json"}, login.basic() if login else "")) as answer:
                value = json.loads(taken(answer, _TOKEN_BYTES))
        except urllib.error.HTTPError as error:
            with closing(error):
                if error.code in (401, 403):
                    refused = "refuses the login" if login else "gives no token without a login"
                    raise ImageFault(f"{self._registry} {refused}{self._hint()}") from None
            raise
        except ValueError:
            raise Refused(401, "its token is no JSON") from None
        token = (value.get("token") or value.get("access_token")) if isinstance(value, dict) else None
        if not isinstance(token, str) or not token.isprintable() or " " in token:
            raise Refused(401, "it gave no token")
        return f"Bearer {token}"

    def denied(self) -> str:
        """What to say where a registry does not let us have something."""
        known = "the login that is known for it does not suffice" if self._known.login else "no login is known for it"
        return f"{known}{self._hint()}"

    def _hint(self) -> str:
        if self._known.helper:
            return f" (the credential helper {self._known.helper!r} may know one, but helpers are not run)"
        return "" if self._known.login else " (log in with `docker login` or `podman login`)"


def taken(answer: Any, most: int) -> bytes:
    """The first ``most`` bytes of an HTTP answer. Raises TimeoutError where they come too slowly."""
    data, patience = b"", Patience()
    while len(data) < most and (more := answer.read1(min(most - len(data), 1 << 16))):
        data += more
        patience.came(len(more))
    return data


class Patience:
    """Ends what only drips: each ``_PATIENCE_S`` must bring ``_LEAST_BYTES``, whatever single reads take."""

    def __init__(self) -> None:
        self._since, self._bytes = time.monotonic(), 0

    def came(self, count: int) -> None:
        """So many bytes have come. Raises TimeoutError."""
        self._bytes += count
        now = time.monotonic()
        if now - self._since < _PATIENCE_S:
            return
        if self._bytes < _LEAST_BYTES:
            raise TimeoutError(f"less than {_LEAST_BYTES} bytes came in {_PATIENCE_S:.0f} s")
        self._since, self._bytes = now, 0


def base_of(host: str) -> str:
    """``https://host``, or ``http://`` for this machine and the hosts of the setting ``registry_http``."""
    return f"{'http' if _plain(host) else 'https'}://{host}"


def _plain(host: str) -> bool:
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    allowed = [word.strip() for word in setting("registry_http").split(",")]
    return name.strip("[]") in roads.HERE or host in allowed or name in allowed


def check(url: str) -> None:
    """Only https, and http where it is allowed, are spoken. Raises Refused."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme != "http" or not _plain(parts.netloc.rpartition("@")[2]):
        raise Refused(310, f"it leads to {parts.scheme}://{parts.hostname}, which is not spoken to without TLS "
                           "(setting registry_http)")


def _told(error: urllib.error.HTTPError) -> str:
    """The registry's own words of an error, where they are few and plain."""
    with suppress(*_BROKEN, ValueError, KeyError, IndexError, TypeError, AttributeError):
        first = json.loads(taken(error.fp, 1 << 16))["errors"][0]
        text = f"{first.get('code', '')} {first.get('message', '')}".strip()
        if text and text.isprintable():
            return text[:200]
    return str(error.reason)[:200]


def _asked(error: urllib.error.HTTPError, otherwise: float) -> float:
    """Seconds to wait, as Retry-After says it: a number or a date."""
    text = (error.headers.get("Retry-After") or "").strip()
    if text.isdigit():
        return min(float(text), _LONGEST_WAIT_S)
    with suppress(TypeError, ValueError, OverflowError):
        return min(max(0.0, parsedate_to_datetime(text).timestamp() - time.time()), _LONGEST_WAIT_S)
    return min(otherwise, _LONGEST_WAIT_S)
