"""Routes of requests: ask for rollouts, look at them, follow them, cancel them; and the policies they are held against.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from woodshed.api.bodies import AnnouncedBody, AskedBody, gives, plain, takes
from woodshed.model.delivery import Announced, Asked, Made, PolicyTold, Requested, RequestTold, RequestWhole
from woodshed.services import following
from woodshed.services import rollouts as service
from woodshed.services.home import Home
from woodshed.services.offer import Offer

T = TypeVar("T", bound=RequestTold)
ALIVE_S = 10.0
"""So often a stream that has nothing to tell says that it lives."""


def routes(home: Home, offer: Offer, ending: asyncio.Event) -> APIRouter:
    """The routes over one home, until it is ``ending``."""
    router = APIRouter(prefix="/v1", tags=["rollouts"])

    def public(told: T) -> T:
        """Its reason names no place of this machine."""
        return told.model_copy(update={"reason": told.reason and offer.public(told.reason)})

    def shown(told: RequestWhole) -> Response:
        return plain(public(told))

    @router.post("/rollouts", status_code=201, openapi_extra=takes(Asked),
                 responses=gives(Made, also=(404, 409), status=201) | {200: {"model": Made}})
    async def ask(asked: AskedBody) -> Response:
        """Ask for rollouts: ``n`` attempts of each task. 201: made now; 200: the key had made it before."""
        made = await asyncio.to_thread(service.ask, home, offer, asked)
        return plain(made, 201 if made.created else 200)

    @router.get("/rollouts", responses=gives(Requested, also=(404,)))
    async def listing(
        most: Annotated[int, Query(ge=1, le=200)] = service.PAGE, before: str | None = None
    ) -> Response:
        """The newest requests."""
        found = await asyncio.to_thread(service.listing, home, most, before, project=offer.project)
        return plain(found.model_copy(update={"requests": tuple(public(one) for one in found.requests)}))

    @router.get("/rollouts/{id}", responses=gives(RequestWhole, also=(404,)))
    async def told(id: str) -> Response:  # noqa: A002 (the parameter's name is the contract's)
        """A request as it stands, with each attempt: state, reward or null, valid, cause, stage."""
        return shown(await asyncio.to_thread(service.told, home, id, project=offer.project))

    @router.post("/rollouts/{id}/cancel", responses=gives(RequestWhole, also=(404,)))
    async def cancel(id: str) -> Response:  # noqa: A002
        """Stop what runs and begin nothing more. Groups that are complete are still handed out. Idempotent."""
        return shown(await asyncio.to_thread(service.cancel, home, id, project=offer.project))

    @router.post("/rollouts/{id}/open", responses=gives(RequestWhole, also=(404, 409)))
    async def reopen(id: str) -> Response:  # noqa: A002
        """Go on with a request that paused itself; its reason says why it did."""
        return shown(await asyncio.to_thread(service.reopen, home, id, project=offer.project))

    @router.get("/rollouts/{id}/events", response_class=StreamingResponse, responses=gives(RequestWhole, also=(404,)))
    async def follow(request: Request, id: str, records: bool = False) -> Response:  # noqa: A002
        """Server-sent events: ``attempt`` as each changes; ``call`` with each model call of one that is done, and

        ``rollout`` with its record (both where ``records``); ``end`` with the request when it is over. A new connection
        tells everything from the beginning.
        """
        await asyncio.to_thread(service.told, home, id, project=offer.project)
        events = following.follow(home, id, records=records, project=offer.project)
        return StreamingResponse(_stream(request, events, ending), media_type="text/event-stream",
                                 headers={"Cache-Control": "no-store"})

    _policies(router, home, offer)
    return router


def _policies(router: APIRouter, home: Home, offer: Offer) -> None:
    """Which weights are current, told and asked."""

    @router.put("/policies/{endpoint:path}", openapi_extra=takes(Announced),
                responses=gives(PolicyTold, also=(404, 409)))
    async def announce(endpoint: str, announced: AnnouncedBody) -> Response:
        """This version of the policy is current. Groups that are too old by that are never delivered. Idempotent."""
        return plain(await asyncio.to_thread(service.announce, home, offer, endpoint, announced))

    @router.get("/policies/{endpoint:path}", responses=gives(PolicyTold, also=(404,)))
    async def policy(endpoint: str) -> Response:
        """The current version of an endpoint's policy."""
        return plain(await asyncio.to_thread(service.policy, home, offer, endpoint))


async def _stream(
    request: Request, events: AsyncGenerator[tuple[str, Any], None], ending: asyncio.Event
) -> AsyncIterator[bytes]:
    """Each event as text; a comment where there was none for a while."""
    coming: asyncio.Future[Any] | None = None
    ended: asyncio.Future[Any] = asyncio.ensure_future(ending.wait())
    try:
        while not ended.done() and not await request.is_disconnected():
            coming = coming or asyncio.ensure_future(anext(events))
            await asyncio.wait({coming, ended}, timeout=ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                yield b": waiting\n\n"
                continue
            try:
                name, data = coming.result()
            except StopAsyncIteration:
                return
            finally:
                coming = None
            yield f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
    finally:
        left = [one for one in (coming, ended) if one is not None]
        for one in left:
            one.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await events.aclose()
