"""The application: routes, problems and the contract, behind the guard."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, Response

from woodshed.api import acted, bodies, deliveries, openenv, problems, rollouts
from woodshed.api.guard import BODY_S, Guard
from woodshed.services.acted import ActedAttempts
from woodshed.services.home import Home
from woodshed.services.metrics import MEDIA, Metrics, Requests
from woodshed.services.offer import Offer
from woodshed.version import __version__

_ABOUT = "Rollouts for trainers: whole groups of attempts, judged in sandboxes; docs/rollouts.md tells how."


def application(
    home: Home, offer: Offer, key: str, attempts: ActedAttempts, *, body_s: float = BODY_S
) -> Guard:
    """The ASGI application over one home. Who has ``key`` may ask for whatever ``offer`` says, and act ``attempts``."""
    app = FastAPI(title="Woodshed", version=__version__, description=_ABOUT, docs_url=None, redoc_url=None,
                  redirect_slashes=False)
    seen, ending = Requests(), asyncio.Event()
    metrics = Metrics(home, seen, offer.project)
    problems.handled(app)
    app.include_router(rollouts.routes(home, offer, ending))
    app.include_router(deliveries.routes(home, offer.project, ending))
    app.include_router(acted.routes(attempts))
    app.include_router(openenv.routes(attempts))

    @app.get("/health", tags=["service"])
    async def health() -> dict[str, str]:
        """Whether the service answers, and its store."""
        await asyncio.to_thread(home.store.queue.workers)
        return {"status": "healthy"}

    @app.get("/metrics", tags=["service"], response_class=Response, responses={200: {"content": {MEDIA: {}}}})
    async def told() -> Response:
        """Attempts, groups, queue, slots, policies, model calls and requests, as Prometheus reads them."""
        return Response(await asyncio.to_thread(metrics.page), media_type=MEDIA)

    bodies.contracted(app)
    return Guard(app, key, seen, ending, body_s=body_s)
