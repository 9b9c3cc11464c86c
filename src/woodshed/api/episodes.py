"""Routes of episodes: begin an attempt, act it call by call, have it verified, or leave it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from woodshed.api.bodies import gives, plain, read, takes
from woodshed.model.episode import Act, Begin, Begun, Ended, Seen
from woodshed.services.episodes import Episodes

BeginBody = Annotated[Begin, Depends(read(Begin))]
ActBody = Annotated[Act, Depends(read(Act))]


def routes(episodes: Episodes) -> APIRouter:
    """The routes over these episodes."""
    router = APIRouter(prefix="/v1", tags=["episodes"])

    @router.post("/episodes", status_code=201, openapi_extra=takes(Begin), responses=gives(Begun, also=(404, 409),
                                                                                          status=201))
    async def begin(begin: BeginBody) -> Response:
        """Open a sandbox and wait for calls. 409 where as many are open as may be."""
        return plain((await episodes.begin(begin)).begun, 201)

    @router.post("/episodes/{id}/act", openapi_extra=takes(Act), responses=gives(Seen, also=(404, 409)))
    async def act(id: str, act: ActBody) -> Response:  # noqa: A002 (the name in the path)
        """Carry out one call of a tool. ``ended`` says that the attempt is over by it. Never asked twice safely."""
        return plain(await episodes.get(id).act(act))

    @router.post("/episodes/{id}/finish", responses=gives(Ended, also=(404,)))
    async def finish(id: str) -> Response:  # noqa: A002
        """Verify what was done. Idempotent; waits for the verdict."""
        return plain(await episodes.get(id).finish())

    @router.delete("/episodes/{id}", responses=gives(Ended, also=(404,)))
    async def leave(id: str) -> Response:  # noqa: A002
        """End it, unverified where it was not finished. Idempotent."""
        await episodes.get(id).close()
        return plain(await episodes.get(id).finish())

    return router
