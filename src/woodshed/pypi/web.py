"""HTTP as pip's configuration asks for it: certificates, trusted hosts, proxies; credentials stay at their host."""

from __future__ import annotations

import base64
import http.client
import netrc
import ssl
import time
import urllib.error
import urllib.request
from contextlib import closing
from typing import IO
from urllib.parse import unquote, urlsplit, urlunsplit

from woodshed.errors import EnvironmentFault
from woodshed.pypi.config import Config

_BROKEN = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError)
_LARGEST_PAGE = 100_000_000


class Missing(Exception):
    """The server has no such page."""


class Web:
    """Opens http and https addresses, nothing else; no redirect leads to a file of this machine."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._credentials: dict[str, str] = {}

    def page(self, url: str, accept: str) -> tuple[str, str, bytes]:
        """The final address, content type and body of a page. Raises Missing, EnvironmentFault."""
        with closing(self.open(url, {"Accept": accept})) as answer:
            try:
                body = answer.read(_LARGEST_PAGE + 1)
            except (*_BROKEN, OSError) as error:
                raise EnvironmentFault(f"{bare(url)} broke off: {_reason(error)}") from error
            if len(body) > _LARGEST_PAGE:
                raise EnvironmentFault(f"{bare(url)} is larger than {_LARGEST_PAGE} bytes: not read")
            return answer.geturl(), answer.headers.get_content_type(), body

    def open(self, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        """An open answer with status 2xx. Network trouble and 5xx are retried. Raises Missing, EnvironmentFault."""
        for left in range(self._config.retries, -1, -1):
            try:
                request = self._request(url, headers)
                answer = self._opener(request.host).open(request, timeout=self._config.timeout_s)
                assert isinstance(answer, http.client.HTTPResponse)
                return answer
            except urllib.error.HTTPError as error:
                error.close()
                if error.code in (404, 410):
                    raise Missing from None
                if error.code not in (429, 500, 502, 503, 504, 520) or not left:
                    raise EnvironmentFault(f"{bare(url)} answers {error.code} {error.reason}") from None
            except (*_BROKEN, OSError) as error:
                if not left or isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
                    raise EnvironmentFault(f"{bare(url)} cannot be reached: {_reason(error)}. Check the network and "
                                           "pip's configuration (index-url, proxy, cert)") from error
            time.sleep(min(8.0, 0.25 * 2 ** (self._config.retries - left)))
        raise AssertionError("the last try returns or raises")

    def _request(self, url: str, headers: dict[str, str]) -> urllib.request.Request:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EnvironmentFault(f"{bare(url)} is no address of an index: only http and https are followed")
        host = parts.netloc.rpartition("@")[2]
        if parts.username is not None:
            self._credentials[host] = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request = urllib.request.Request(urlunsplit(parts._replace(netloc=host, fragment="")))  # noqa: S310 (checked above)
        for name, value in {"User-Agent": "woodshed", "Accept-Encoding": "identity", **headers}.items():
            request.add_header(name, value)
        if login := self._credentials.get(host) or _netrc(parts.hostname):
            # Unredirected: urllib would hand an ordinary header to whatever host the index redirects to.
            request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
        return request

    def _opener(self, host: str) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context(cafile=self._config.cert)
        if self._config.client_cert:
            context.load_cert_chain(self._config.client_cert)
        if host.lower() in self._config.trusted or host.lower().rpartition(":")[0] in self._config.trusted:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        proxy = self._config.proxy
        opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler({"http": proxy, "https": proxy} if proxy else None),
            urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(context=context),
            urllib.request.HTTPDefaultErrorHandler(), urllib.request.HTTPRedirectHandler(),
            urllib.request.HTTPErrorProcessor(), urllib.request.UnknownHandler(),
        ):
            opener.add_handler(handler)
        return opener


def bare(url: str) -> str:
    """The address without user, password and fragment: fit for messages."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))


def chunk(answer: IO[bytes], size: int, url: str) -> bytes:
    """The next piece of a body. Raises EnvironmentFault where the connection breaks."""
    try:
        return answer.read(size)
    except (*_BROKEN, OSError) as error:
        raise EnvironmentFault(f"{bare(url)} broke off: {_reason(error)}") from error


def _netrc(host: str) -> str | None:
    try:
        found = netrc.netrc().authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return None
    return f"{found[0]}:{found[2]}" if found else None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error or type(error).__name__)
