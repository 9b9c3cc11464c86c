"""Problems: whatever goes wrong is answered as ``application/problem+json`` (RFC 9457), in plain words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from woodshed.errors import Conflict, Missing, StoreFault, UsageError, WoodshedError

MEDIA = "application/problem+json"
TITLES = {400: "cannot be read", 401: "the key is missing or wrong", 404: "not found", 405: "method not allowed",
          408: "the request took too long", 409: "conflict", 413: "the request is too large",
          415: "the request is no JSON", 422: "cannot be done as asked", 500: "a fault of ours",
          503: "cannot be done now"}
AGAIN_S = "1"
"""So soon whoever met a fault of the store may ask again."""


class Problem(BaseModel):
    """Why a request was not done. ``field`` names what is wrong in it, ``remedy`` what mends it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    field: str | None = None
    remedy: str | None = None


class Refused(Exception):
    """A request that is answered with this status, before any service hears of it."""

    def __init__(self, status: int, detail: str, *, field: str | None = None) -> None:
        self.status, self.detail, self.field = status, detail, field
        super().__init__(detail)


def body(status: int, detail: str, *, field: str | None = None, remedy: str | None = None) -> bytes:
    """The problem as JSON in UTF-8."""
    told: dict[str, Any] = {"type": "about:blank", "title": TITLES.get(status, "not done"), "status": status,
                            "detail": detail, "field": field, "remedy": remedy}
    return json.dumps({key: value for key, value in told.items() if value is not None}).encode()


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
        return answer(503, "the store cannot be written or read now", remedy="Ask again; what was done is kept.")
    return answer(422, str(error))


def unfit(error: ValidationError) -> Refused:
    """The first thing that is wrong with a body, and how much more is; nothing of what was sent stands in it."""
    return _first(error.errors(include_url=False, include_context=False, include_input=False))


def _first(errors: Sequence[Any]) -> Refused:
    first, more = errors[0], f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    where = ".".join(str(part) for part in first["loc"] if part not in ("query", "path", "body"))[:200]
    return Refused(422, f"{str(first['msg'])[:300]}{more}", field=where or None)


def handled(app: FastAPI) -> None:
    """From now on the application answers every error as a problem."""

    @app.exception_handler(WoodshedError)
    async def ours(_request: Request, error: WoodshedError) -> Response:
        return of(error)

    @app.exception_handler(Refused)
    async def refused(_request: Request, error: Refused) -> Response:
        return answer(error.status, error.detail, field=error.field)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        found = _first(error.errors())
        return answer(422, found.detail, field=found.field)

    @app.exception_handler(HTTPException)
    async def http(_request: Request, error: HTTPException) -> Response:
        return answer(error.status_code, TITLES.get(error.status_code, str(error.detail)))

    @app.exception_handler(Exception)
    async def unforeseen(_request: Request, error: Exception) -> Response:
        return answer(500, f"it broke as nobody foresaw ({type(error).__name__}); the service's own log says more")
