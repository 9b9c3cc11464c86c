"""Offer: what those who ask a service for rollouts may name: tasks, agents and endpoints that its operator declared.

Whoever asks is not trusted with this machine. Tasks are names below folders that were given, never paths; agents are
those that read no file and run no command of the asker's; endpoints are declared, or fit a pattern that is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from woodshed import plugins
from woodshed.errors import Missing, UsageError
from woodshed.model import Agent, ModelSpec, Record, Sampling
from woodshed.model.delivery import Address, Asked
from woodshed.model.rollout import CaptureLevel
from woodshed.services.agents import build, parse_model
from woodshed.services.declared import read_toml
from woodshed.tasks.load import task_folders

MOST = 10_000
"""Attempts of one request, unless the operator says otherwise."""
_NEAR = 3
"""So many names are told of those that may have been meant."""
_SPECIAL = frozenset({"external", "replay", "patch", "cheat"})
"""Agents that are nothing without an argument, most of them a file or a command."""


class Declared(Record):
    """A file of what is offered: ``[endpoints.NAME]`` are models, ``[agents.NAME]`` agents without theirs."""

    endpoints: dict[str, ModelSpec] = {}
    agents: dict[str, Agent] = {}


@dataclass(frozen=True, slots=True)
class Offer:
    """What may be asked for. ``patterns`` are of endpoints that the asker may name by address."""

    roots: tuple[Path, ...]
    endpoints: dict[str, ModelSpec] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    patterns: tuple[Pattern, ...] = ()
    engine: str = "native"
    pool: str = ""
    most: int = MOST
    strict: bool = False
    project: str = "default"

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def folders(self, names: Sequence[str], *, field: str = "tasks") -> list[Path]:
        """The task folders that these names mean, each once. Raises Missing, or UsageError for what is no name.

        ``field`` is where the names stand.
        """
        found = dict.fromkeys(folder for name in names for folder in self._folders(name, field))
        return list(found)

    def _folders(self, name: str, field: str) -> list[Path]:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
            raise UsageError(f"{name!r} is no name of a task", field=field,
                             remedy="Name it by its path below the folders that are served.")
        within = [(root, place) for root in self.roots if (place := _below(root, parts)) is not None]
        if not within:
            raise Missing(f"no task {name!r}", field=field, remedy=self._near(name))
        if len(within) > 1:
            raise UsageError(f"{name!r} stands in {len(within)} of the folders that are served", field=field,
                             remedy="Serve them apart, or give one another name.")
        root, place = within[0]
        try:
            return [folder for folder in task_folders(place) if folder.is_relative_to(root)]
        except UsageError:
            raise Missing(f"no task {name!r}", field=field, remedy="Name a folder with task.toml, or one of such."
                          ) from None

    def _near(self, name: str) -> str:
        """What may have been meant by a name of no task."""
        known: list[str] = []
        for root in self.roots:
            with suppress(UsageError):  # none is there, or too many to look at
                known += [found.relative_to(root).as_posix() for found in task_folders(root)
                          if found.is_relative_to(root)]
        last = PurePosixPath(name).name
        near = [one for one in known if one.rpartition("/")[2] == last] or get_close_matches(name, known, n=_NEAR)
        if near:
            return f"Did you mean {' or '.join(map(repr, near[:_NEAR]))}?"
        return f"Name one below the folders that are served, as {', '.join(map(repr, known[:_NEAR])) or 'none is'}."

    def public(self, text: str) -> str:
        """``text`` without the places of the folders that are served."""
        for root in self.roots:
            text = text.replace(f"{root}/", "").replace(str(root), root.name)
        return text

    # -- agents and endpoints ------------------------------------------------------------------------------------------

    def agent(self, asked: Asked, *, version: int | str | None = None) -> tuple[Agent, str | None]:
        """The agent that is asked for, bound to its endpoint, and what that endpoint is called.

        Raises UsageError for an agent or an endpoint that is not offered.
        """
        declared = self.agents.get(asked.agent)
        harness = declared.harness if declared is not None else self._harness(asked.agent)
        model, label = self._model(asked, version) if plugins.harness(harness).needs_model else (None, None)
        if declared is None:
            [made] = build([harness], model, limits=asked.limits)
        else:
            made = declared.model_copy(update={"model": model, "limits": asked.limits or declared.limits})
        return made, label

    def _harness(self, name: str) -> str:
        kind, colon, argument = name.partition(":")
        known = kind in plugins.names("harnesses")
        plain = known and not colon and kind not in _SPECIAL
        program = kind == "external" and argument in plugins.names("external")
        if not plain and not program:
            offered = sorted({*self.agents, *set(plugins.names("harnesses")) - _SPECIAL})
            raise UsageError(f"the agent {name!r} is not offered", field="agent",
                             remedy=f"Offered: {', '.join(offered)}, and what the operator adds.")
        return name

    def _model(self, asked: Asked, version: int | str | None) -> tuple[ModelSpec, str]:
        label, model = self.endpoint(asked.endpoint)
        changes: dict[str, object] = {}
        if asked.sampling is not None:
            said = {name: getattr(asked.sampling, name) for name in asked.sampling.model_fields_set}
            changes["sampling"] = model.sampling.model_copy(update=said)
        if version is not None:
            changes["policy_version"] = str(version)
        if asked.capture:
            changes["capture"] = "auto" if model.capture == "off" else model.capture
            changes["capture_least"] = CaptureLevel.LOGPROBS
        return model.model_copy(update=changes), label

    def endpoint(self, asked: str | Address | None) -> tuple[str, ModelSpec]:
        """An endpoint's name (or its address, where it has none) and the model. Raises UsageError, Missing."""
        if asked is None:
            if len(self.endpoints) == 1:
                return next(iter(self.endpoints.items()))
            raise UsageError("the agent needs a model, and no endpoint is named", field="endpoint",
                             remedy=f"Offered: {', '.join(sorted(self.endpoints)) or 'none'}.")
        if isinstance(asked, str):
            if asked not in self.endpoints:
                raise Missing(f"no endpoint {asked!r}", field="endpoint",
                              remedy=f"Offered: {', '.join(sorted(self.endpoints)) or 'none'}.")
            return asked, self.endpoints[asked]
        if not any(pattern.allows(asked.base_url) for pattern in self.patterns):
            raise UsageError("endpoints at this address are not allowed", field="endpoint.base_url",
                             remedy="Name a declared one, or have the operator say --allow-endpoints.")
        url = asked.base_url.rstrip("/")
        return url, ModelSpec(name=asked.model, base_url=url)

    def known(self, label: str) -> str:
        """``label``, of an endpoint that could be asked for. Raises Missing."""
        if label in self.endpoints or any(pattern.allows(label) for pattern in self.patterns):
            return label.rstrip("/")
        raise Missing(f"no endpoint {label!r}", field="endpoint",
                      remedy=f"Offered: {', '.join(sorted(self.endpoints)) or 'none'}.")


@dataclass(frozen=True, slots=True)
class Pattern:
    """Addresses of one scheme, of hosts that fit, at one port (or any), below a path.

    A host is a name, ``*.NAME`` for all below one, or an IPv4 address of which a number may be ``*``.
    """

    scheme: str
    host: str
    port: int | None
    path: str

    def allows(self, url: str) -> bool:
        """Whether this address is one of them. What cannot be read for certain is none."""
        try:
            parts = urlsplit(url)
            port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
        except ValueError:
            return False
        if parts.scheme != self.scheme or not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment \
                or not re.fullmatch(r"[!-~]+", url) or set(url) & set("\\,"):
            return False
        below = parts.path.rstrip("/")
        inside = below == self.path or below.startswith(f"{self.path}/")
        return inside and ".." not in PurePosixPath(below).parts and "%" not in below \
            and (self.port is None or port == self.port) and self._hosts(parts.hostname)

    def _hosts(self, host: str) -> bool:
        if self.host.startswith("*."):
            return host.endswith(self.host[1:]) and not _is_address(host)
        if "*" in self.host:
            return _is_address(host) and fnmatchcase(host, self.host)
        return host == self.host


def pattern(text: str) -> Pattern:
    """The Pattern that ``SCHEME://HOST[:PORT|:*][/PATH]`` declares. Raises UsageError."""
    found = re.fullmatch(r"(https?)://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.*-]+)(?::(\d{1,5}|\*))?(/[!-~]*)?", text)
    if found is None or not _sound(found[2]):
        raise UsageError(f"{text!r} is no pattern of endpoints", field="--allow-endpoints",
                         remedy="Say http://10.0.0.*:8000/v1, https://*.example.org, or an address in full.")
    port = None if found[3] == "*" else int(found[3]) if found[3] else {"http": 80, "https": 443}[found[1]]
    return Pattern(found[1], found[2].strip("[]").lower(), port, (found[4] or "").rstrip("/"))


def _sound(host: str) -> bool:
    """A star stands for all names below one, or for a number of an IPv4 address; nowhere else."""
    if "*" not in host:
        return True
    if host.startswith("*."):
        return "*" not in host[2:] and not host[2:].replace(".", "").isdigit()
    return re.fullmatch(r"(?:\d{1,3}|\*)(?:\.(?:\d{1,3}|\*)){3}", host) is not None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _below(root: Path, parts: Sequence[str]) -> Path | None:
    """The place that a name means below a root; None where there is nothing, or it lies elsewhere by a link."""
    try:
        place = root.joinpath(*parts).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        return None
    return place if place.is_relative_to(root) and place.is_dir() else None


def made(
    roots: Sequence[Path], *, file: Path | None = None, endpoints: Sequence[str] = (), agents: Sequence[str] = (),
    patterns: Sequence[str] = (), capture: str = "off", engine: str = "native", pool: str = "", most: int = MOST,
    strict: bool = False, project: str = "default",
) -> Offer:  # fmt: skip
    """The Offer that a command line says. ``endpoints`` are ``NAME=MODEL@URL``, ``agents`` short names with arguments.

    Raises UsageError naming the option, and the remedy.
    """
    places = tuple(dict.fromkeys(_root(root) for root in roots))
    declared = Declared.parse(_named(read_toml(file, "docs/rollouts.md")), file=file) if file else Declared()
    models, known = dict(declared.endpoints), dict(declared.agents)
    for text in endpoints:
        name, equals, model = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name):
            raise UsageError(f"{text!r} names no endpoint", field="--endpoint", remedy="Say NAME=MODEL@URL.")
        models[name] = parse_model(model, sampling=Sampling(), capture=capture)
    for name in agents:
        plugins.harness(name)
        known[name] = Agent(name=name, harness=name)
    for agent in known.values():
        plugins.harness(agent.harness)
    return Offer(places, models, known, tuple(pattern(text) for text in patterns), engine, pool, most, strict,
                 project)


def _root(root: Path) -> Path:
    found = root.expanduser().resolve()
    if not found.is_dir():
        raise UsageError("no such folder", file=root, field="--tasks", remedy="Name a folder of task folders.")
    return found


def _named(tables: dict[str, object]) -> dict[str, object]:
    """The tables of a file, each agent with the name of its own table."""
    agents = tables.get("agents")
    if isinstance(agents, dict):
        tables = {**tables, "agents": {
            name: {"name": name, **table} if isinstance(table, dict) else table for name, table in agents.items()}}
    return tables
