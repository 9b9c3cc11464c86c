"""Routes of acted attempts: begin one, act it call by call, have it verified, or leave it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from woodshed.api.bodies import gives, plain, read, takes
from woodshed.model.acted import Act, Begin, Begun, Ended, Seen
from woodshed.services.acted import ActedAttempts

BeginBody = Annotated[Begin, Depends(read(Begin))]
ActBody = Annotated[Act, Depends(read(Act))]


def routes(attempts: ActedAttempts) -> APIRouter:
    """The routes over these attempts."""
    router = APIRouter(prefix="/v1", tags=["attempts"])

    @router.post("/attempts", status_code=201, openapi_extra=takes(Begin), responses=gives(Begun, also=(404, 409),
                                                                                          status=201))
    async def begin(request: Request, begin: BeginBody) -> Response:
        """Open a sandbox and wait for calls. 409 where as many are open as may be. Who is gone by then has left it."""
        acted = await attempts.begin(begin)
        if await request.is_disconnected():
            acted.outside.leave("whoever began it left")
        return plain(acted.begun, 201)

    @router.post("/attempts/{id}/act", openapi_extra=takes(Act), responses=gives(Seen, also=(404, 409)))
    async def act(id: str, act: ActBody) -> Response:  # noqa: A002 (the name in the path)
        """Carry out one call of a tool. ``ended`` says that the attempt is over by it. Never asked twice safely."""
        return plain(await attempts.get(id).act(act))

    @router.post("/attempts/{id}/finish", responses=gives(Ended, also=(404,)))
    async def finish(id: str) -> Response:  # noqa: A002
        """Verify what was done. Idempotent; waits for the verdict."""
        return plain(await attempts.get(id).finish())

    @router.delete("/attempts/{id}", responses=gives(Ended, also=(404,)))
    async def leave(id: str) -> Response:  # noqa: A002
        """End it, unverified where it was not finished. Idempotent."""
        await attempts.get(id).close()
        return plain(await attempts.get(id).finish())

    return router
