"""Routes of deliveries: take whole groups, and say what became of them."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from woodshed.api.bodies import RenewBody, SettleBody, gives, plain, takes
from woodshed.model.delivery import Deliveries, Renew, Settle, Settled
from woodshed.services import deliveries as service
from woodshed.services.home import Home

MOST = 64
"""Groups of one answer."""
Consumer = Annotated[str, Query(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")]


def routes(home: Home, project: str, ending: asyncio.Event) -> APIRouter:
    """The routes over one home, until it is ``ending``."""
    router = APIRouter(prefix="/v1", tags=["deliveries"])

    @router.get("/groups", responses=gives(Deliveries, also=(404,)))
    async def groups(
        request: Request, consumer: Consumer,
        most: Annotated[int, Query(ge=1, le=MOST)] = 1,
        wait_s: Annotated[float, Query(ge=0, le=service.LONGEST_WAIT_S)] = 0.0,
        lease_s: Annotated[float, Query(gt=0, le=service.LONGEST_LEASE_S)] = service.LEASE_S,
        of: Annotated[list[str] | None, Query(alias="request", max_length=200)] = None,
        again: bool = False,
    ) -> Response:  # fmt: skip
        """Whole groups in order of completion, leased to ``consumer``; waits for the first for ``wait_s``.

        ``request`` (repeatable) asks for those of these requests alone. ``again`` takes what this consumer was leased
        before and did not settle, for one that died and is back. ``over``: nothing more will come of these requests.
        """

        async def gone() -> bool:
            return ending.is_set() or await request.is_disconnected()

        found = await service.next_groups(
            home, consumer, most=most, lease_s=lease_s, wait_s=wait_s, requests=of, again=again,
            gone=gone, project=project)
        return await asyncio.to_thread(plain, found)

    @router.post("/groups/ack", openapi_extra=takes(Settle), responses=gives(Settled))
    async def ack(settle: SettleBody) -> Response:
        """These deliveries are consumed for good, together. Idempotent. ``lost`` ones are another's by now."""
        return plain(await asyncio.to_thread(service.ack, home, settle.deliveries, project=project))

    @router.post("/groups/give-back", openapi_extra=takes(Settle), responses=gives(Settled))
    async def give_back(settle: SettleBody) -> Response:
        """Whoever asks next gets these groups."""
        return plain(await asyncio.to_thread(service.give_back, home, settle.deliveries, project=project))

    @router.post("/groups/renew", openapi_extra=takes(Renew), responses=gives(Settled))
    async def renew(more: RenewBody) -> Response:
        """The leases of these deliveries run for ``lease_s`` from now on."""
        settled = await asyncio.to_thread(service.renew, home, more.deliveries, more.lease_s, project=project)
        return plain(settled)

    return router
