"""A record is frozen, rejects unknown keys, and says how to mend what it rejects."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from woodshed.errors import UsageError


class Record(BaseModel):
    """A frozen value. Unknown keys and values of the wrong kind are errors; NaN and infinity are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse(cls, data: Any, *, file: object | None = None) -> Self:
        """The record that ``data`` (parsed TOML or JSON) declares.

        Raises :class:`UsageError` naming ``file``, the dotted field and the remedy for the first thing wrong.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise _explain(cls, error, file) from None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, enums by value and times in ISO 8601."""
        return self.model_dump(mode="json")


def _explain(cls: type[BaseModel], error: ValidationError, file: object | None) -> UsageError:
    first, count = error.errors(include_url=False)[0], error.error_count()
    field = ".".join(str(part) for part in first["loc"]) or cls.__name__
    more = f" (and {count - 1} more)" if count > 1 else ""
    if first["type"] == "extra_forbidden":
        known = sorted(siblings(cls, first["loc"][:-1]))
        near = get_close_matches(str(first["loc"][-1]), known, n=1)
        remedy = f"Did you mean '{near[0]}'?" if near else f"Remove it; known here: {', '.join(known) or 'nothing'}."
        return UsageError(f"unknown key{more}", file=file, field=field, remedy=remedy)
    if first["type"] == "missing":
        return UsageError(f"required, but missing{more}", file=file, field=field, remedy="Add it.")
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    return UsageError(f"{message[:1].lower()}{message[1:]}{more}", file=file, field=field,
                      remedy=f"Found {_short(first['input'])}.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def siblings(cls: type[BaseModel], path: tuple[int | str, ...]) -> set[str]:
    """The keys a table at ``path`` may have; empty where the path leaves the models we know."""
    current: Any = cls
    for part in path:
        field = getattr(current, "model_fields", {}).get(part) if isinstance(part, str) else None
        if isinstance(part, str) and field is None:
            return set()
        if field is not None:
            current = _model_in(field.annotation)
    return {f.alias or name for name, f in getattr(current, "model_fields", {}).items()}


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if (found := _model_in(inner)) is not None:
            return found
    return None
