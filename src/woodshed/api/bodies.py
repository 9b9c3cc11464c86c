"""Bodies: JSON of a request as one of our records, strictly: no text is a number, and no key is unknown."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Request, Response
from pydantic import ValidationError
from pydantic.json_schema import models_json_schema

from woodshed.api.problems import MEDIA, Problem, Refused, unfit
from woodshed.model import Record
from woodshed.model.acted import Act, Begin
from woodshed.model.delivery import Announced, Asked, Renew, Settle

R = TypeVar("R", bound=Record)
BODIES: tuple[type[Record], ...] = (Asked, Announced, Renew, Settle, Begin, Act)
REF = "#/components/schemas/{model}"


def read(kind: type[R]) -> Callable[[Request], Coroutine[Any, Any, R]]:
    """Reads a request's body as ``kind``. Raises Refused."""

    async def body(request: Request) -> R:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "its body is not said to be JSON")
        try:
            return kind.model_validate_json(await request.body(), strict=True)
        except ValidationError as error:
            raise unfit(error, kind) from None

    return body


AskedBody = Annotated[Asked, Depends(read(Asked))]
AnnouncedBody = Annotated[Announced, Depends(read(Announced))]
SettleBody = Annotated[Settle, Depends(read(Settle))]
RenewBody = Annotated[Renew, Depends(read(Renew))]


def takes(kind: type[Record]) -> dict[str, Any]:
    """What a route that reads ``kind`` adds to the contract."""
    schema = {"$ref": REF.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def gives(kind: type[Record], *, also: tuple[int, ...] = (), status: int = 200) -> dict[int | str, dict[str, Any]]:
    """What a route answers, by status; the usual problems among it."""
    problem = {"model": Problem, "content": {MEDIA: {}}}
    told: dict[int | str, dict[str, Any]] = {status: {"model": kind}}
    return told | {code: {**problem, "description": "problem"} for code in (401, 422, 503, *also)}


def plain(record: Record, status: int = 200) -> Response:
    """A record as the answer. Half surrogate pairs, of names that are no Unicode, leave as JSON escapes them."""
    try:
        content = record.model_dump_json().encode()  # the faster way, where a group holds many ids
    except ValueError:
        content = json.dumps(record.to_json(), separators=(",", ":")).encode()
    return Response(content, status, media_type="application/json")


def contracted(app: FastAPI) -> None:
    """The application's OpenAPI document names the bodies, which FastAPI does not see, and the key."""
    made = app.openapi

    def contract() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = made()
            _, schemas = models_json_schema([(kind, "validation") for kind in BODIES], ref_template=REF)
            components = document.setdefault("components", {})
            components.setdefault("schemas", {}).update(schemas["$defs"])
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"key": []}]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = contract  # type: ignore[method-assign]  # as FastAPI's own documentation extends it
