"""A client of the rollout service for a trainer's own process: synchronous, typed, with the standard library alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from pydantic import ValidationError

from woodshed.errors import Conflict, EnvironmentFault, Missing, UsageError
from woodshed.model import Record
from woodshed.model.acted import Act, Begin, Begun, Ended, Seen
from woodshed.model.delivery import Asked, Delivered, Deliveries, Made, PolicyTold, RequestWhole, Settled

R = TypeVar("R", bound=Record)
OPEN_S, ACT_S = 540.0, 3600.0
"""Beyond the usual, a sandbox may take to open, and a call or a verification to end: their own limits come first."""

KEY_REMEDY = "Give the one of the service: what its WOODSHED_SERVE_KEY holds, or else the file serve.key of its home."


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_more: Any) -> None:
        return None  # the key goes nowhere else


class Client:
    """Talks to one service. Raises Missing (404), Conflict (409), UsageError (else 4xx; for a key or an address that

    cannot be one, at once), EnvironmentFault where it does not answer: but for ``patience_s`` it is asked again, where
    asking twice is the same as once.
    """

    def __init__(self, url: str, key: str, *, timeout_s: float = 60.0, patience_s: float = 30.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"{url!r} is no address of a service", field="url", remedy="Say http://HOST:PORT.")
        key = key.strip()  # of a file, it ends with a line
        if not key or not all("!" <= sign <= "~" for sign in key):
            raise UsageError("this is no key of a rollout service", field="key", remedy=KEY_REMEDY)
        self._url, self._key, self._timeout_s, self._patience_s = url.rstrip("/"), key, timeout_s, patience_s
        self._opener = build_opener(ProxyHandler({}), _NoRedirects())

    def ask(self, asked: Asked) -> Made:
        """Ask for rollouts. With its ``idempotency_key`` it may be asked again, and is one request."""
        body = asked.model_dump(mode="json", exclude_unset=True)
        return self._call(Made, "POST", "/v1/rollouts", body, again=asked.idempotency_key is not None)

    def told(self, request: str) -> RequestWhole:
        """A request as it stands."""
        return self._call(RequestWhole, "GET", f"/v1/rollouts/{quote(request, safe='')}")

    def cancel(self, request: str) -> RequestWhole:
        """Stop what runs of it."""
        return self._call(RequestWhole, "POST", f"/v1/rollouts/{quote(request, safe='')}/cancel", {})

    def announce(self, endpoint: str, version: int | str, *, back: bool = False) -> PolicyTold:
        """This version of the policy is current."""
        return self._call(PolicyTold, "PUT", f"/v1/policies/{quote(endpoint)}", {"version": version, "back": back})

    def take(self, consumer: str, *, most: int = 1, wait_s: float = 30.0, lease_s: float = 600.0,
             requests: Sequence[str] = (), again: bool = False) -> Deliveries:
        """At most ``most`` whole groups, leased to ``consumer``; see the service's ``GET /v1/groups``."""
        said = [("consumer", consumer), ("most", most), ("wait_s", wait_s), ("lease_s", lease_s),
                ("again", str(again).lower()), *(("request", one) for one in requests)]
        return self._call(Deliveries, "GET", f"/v1/groups?{urlencode(said)}", wait_s=wait_s)

    def groups(self, consumer: str, *, lease_s: float = 600.0, requests: Sequence[str] = ()) -> Iterator[Delivered]:
        """Each group as it comes; asking for the next one acknowledges the one before. Ends when these requests are

        over; without any named, never. The name is this process's alone: what another of it had before it died comes,
        too. Raises Conflict where the lease had run out by then.
        """
        over = False
        while not over:
            found = self.take(consumer, lease_s=lease_s, requests=requests, again=True)
            for group in found.groups:
                yield group
                self.ack([group.delivery])
            over = found.over

    def ack(self, deliveries: Sequence[str]) -> None:
        """These groups are consumed, together and for good. Raises Conflict where one is another's by now."""
        if (lost := self._call(Settled, "POST", "/v1/groups/ack", {"deliveries": list(deliveries)}).lost):
            raise Conflict(f"others have {', '.join(lost)} by now", remedy="Lease them for longer, or renew in time.")

    def renew(self, deliveries: Sequence[str], lease_s: float = 600.0) -> Settled:
        """Their leases run for ``lease_s`` from now on."""
        return self._call(Settled, "POST", "/v1/groups/renew", {"deliveries": list(deliveries), "lease_s": lease_s})

    def give_back(self, deliveries: Sequence[str]) -> Settled:
        """Whoever asks next gets them."""
        return self._call(Settled, "POST", "/v1/groups/give-back", {"deliveries": list(deliveries)})

    # -- acted attempts ------------------------------------------------------------------------------------------------

    def begin(self, begin: Begin) -> Begun:
        """An attempt that waits for calls. Raises Conflict where as many are open as may be."""
        return self._call(Begun, "POST", "/v1/attempts", begin.to_json(), again=False, wait_s=OPEN_S + begin.wait_s)

    def act(self, attempt: str, act: Act) -> Seen:
        """What a tool answers. Raises Conflict where the attempt is over already."""
        return self._call(Seen, "POST", f"/v1/attempts/{quote(attempt, safe='')}/act", act.to_json(), again=False,
                          wait_s=ACT_S)

    def finish(self, attempt: str) -> Ended:
        """What was done is verified. May be asked again."""
        return self._call(Ended, "POST", f"/v1/attempts/{quote(attempt, safe='')}/finish", {}, wait_s=ACT_S)

    def leave(self, attempt: str) -> None:
        """Nobody acts it any more. One that is gone is no matter."""
        with suppress(Missing):
            self._call(Ended, "DELETE", f"/v1/attempts/{quote(attempt, safe='')}", wait_s=ACT_S)

    def _call(self, of: type[R], method: str, path: str, body: Any = None, again: bool = True, wait_s: float = 0) -> R:
        until, pause_s = time.monotonic() + (self._patience_s if again else 0.0), 0.1
        while True:
            try:
                return self._read(of, self._sent(method, path, body, self._timeout_s + wait_s))
            except EnvironmentFault:
                if time.monotonic() + pause_s > until:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 2.0)

    def _read(self, of: type[R], content: bytes) -> R:
        try:
            return of.model_validate_json(content)
        except ValidationError:
            raise UsageError(f"what answers at {self._url} is no rollout service, or one of another version",
                             field="url", remedy="Check the address, and that both have the same version.") from None

    def _sent(self, method: str, path: str, body: Any, timeout_s: float) -> bytes:
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._url + path, data, headers, method=method)  # noqa: S310 (the operator's own address)
        try:
            return bytes(self._opener.open(request, timeout=timeout_s).read())  # which closes it
        except HTTPError as error:
            with error:
                raise _fault(error.code, error.read(100_000)) from None
        except (URLError, HTTPException, OSError) as error:
            raise EnvironmentFault(f"the rollout service at {self._url} does not answer: {error}") from error


def _fault(status: int, content: bytes) -> UsageError | EnvironmentFault:
    try:
        told = json.loads(content)
        detail, field, remedy = str(told["detail"]), told.get("field"), told.get("remedy")
    except (ValueError, KeyError, TypeError):
        detail, field, remedy = f"HTTP {status}", None, None
    if status >= 500 or status == 408:
        return EnvironmentFault(f"the rollout service: {detail}")
    if status == 401:
        return UsageError("the rollout service refuses this key", field="key", remedy=KEY_REMEDY)
    kind = Missing if status == 404 else Conflict if status == 409 else UsageError
    return kind(detail, field=field, remedy=remedy)
