"""Problems: whatever goes wrong is answered as ``application/problem+json`` (RFC 9457), in plain words."""

from __future__ import annotations

import json

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from woodshed.api.wording import Wrong, wording
from woodshed.errors import Conflict, Missing, StoreFault, UsageError, WoodshedError
from woodshed.model.record import Record

MEDIA = "application/problem+json"
TITLES = {400: "cannot be read", 401: "the key is missing or wrong", 404: "not found", 405: "method not allowed",
          408: "the request took too long", 409: "conflict", 413: "the request is too large",
          415: "the request is no JSON", 422: "cannot be done as asked", 500: "a fault of ours",
          503: "cannot be done now"}
FIELDS = {400: "body", 401: "Authorization", 404: "path", 405: "method", 408: "body", 413: "body", 415: "Content-Type",
          500: "service", 503: "service"}
"""What is wrong where nothing more is known of it; else the request."""
REMEDIES = {
    400: "Send it whole, as HTTP/1.1.",
    401: "Say it as: Authorization: Bearer KEY. It is what the service's WOODSHED_SERVE_KEY holds, or else serve.key "
         "of its home.",
    404: "GET /openapi.json lists what there is.", 405: "GET /openapi.json lists what there is.",
    408: "Send it sooner, or in smaller pieces.", 413: "Ask for less at a time.",
    415: "Say Content-Type: application/json.", 500: "Ask the service's operator: its own log says more.",
    503: "Ask again in a moment; what was done is kept.",
}
DOCS = "docs/rollouts.md tells what may be asked."
AGAIN_S = "1"
"""So soon whoever met a fault of the store may ask again."""


class Problem(BaseModel):
    """Why a request was not done. ``field`` names what is wrong in it (``request``: all), ``remedy`` what mends it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    field: str
    remedy: str


class Refused(Exception):
    """A request that is answered with this status, before any service hears of it."""

    def __init__(
        self, status: int, detail: str, *, field: str | None = None, remedy: str | None = None
    ) -> None:
        self.status, self.detail, self.field, self.remedy = status, detail, field, remedy
        super().__init__(detail)


def body(status: int, detail: str, *, field: str | None = None, remedy: str | None = None) -> bytes:
    """The problem as JSON in UTF-8."""
    told = Problem(title=TITLES.get(status, "not done"), status=status, detail=detail,
                   field=field or FIELDS.get(status, "request"), remedy=remedy or REMEDIES.get(status, DOCS))
    return json.dumps(told.model_dump()).encode()


def answer(status: int, detail: str, *, field: str | None = None, remedy: str | None = None) -> Response:
    """The problem as a response."""
    headers = {"Retry-After": AGAIN_S} if status == 503 else None
    return Response(body(status, detail, field=field, remedy=remedy), status, headers, media_type=MEDIA)


def of(error: WoodshedError) -> Response:
    """What one of our errors is over HTTP."""
    if isinstance(error, UsageError):
        status = 404 if isinstance(error, Missing) else 409 if isinstance(error, Conflict) else 422
        where = None if error.file is None else f"{error.file}: "
        return answer(status, f"{where or ''}{error.message}", field=error.field, remedy=error.remedy)
    if isinstance(error, StoreFault):
        return answer(503, "the store cannot be written or read now", field="store",
                      remedy="Ask again; what was done is kept.")
    return answer(503 if error.retryable else 500, str(error))


def unfit(error: ValidationError, kind: type[Record]) -> Refused:
    """The first thing that is wrong with a body that was to be a ``kind``, and how much more is."""
    return _refused(wording(error.errors(include_url=False, include_input=False), kind))


def _refused(wrong: Wrong) -> Refused:
    return Refused(422, wrong.detail, field=wrong.field, remedy=wrong.remedy)


def handled(app: FastAPI) -> None:
    """From now on the application answers every error as a problem."""

    @app.exception_handler(WoodshedError)
    async def ours(_request: Request, error: WoodshedError) -> Response:
        return of(error)

    @app.exception_handler(Refused)
    async def refused(_request: Request, error: Refused) -> Response:
        return answer(error.status, error.detail, field=error.field, remedy=error.remedy)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        return await refused(_request, _refused(wording(error.errors())))

    @app.exception_handler(HTTPException)
    async def http(_request: Request, error: HTTPException) -> Response:
        return answer(error.status_code, TITLES.get(error.status_code, str(error.detail)))

    @app.exception_handler(Exception)
    async def unforeseen(_request: Request, error: Exception) -> Response:
        return answer(500, f"it broke as nobody foresaw ({type(error).__name__}); the service's own log says more")
