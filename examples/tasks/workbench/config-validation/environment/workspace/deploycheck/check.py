"""The rules of README.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

NAME = re.compile(r"^[a-z][a-z0-9-]{0,29}$")
SIZE = re.compile(r"^(\d+)(Mi|Gi)$")
SERVICE_KEYS = ["name", "image", "port", "replicas", "memory", "timeout", "env", "depends_on"]


@dataclass(frozen=True)
class Problem:
    """What is wrong, and where."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def validate(config: Any) -> list[Problem]:
    """All problems of a deployment file that was read as JSON."""
    try:
        _check(config)
    except _Found as found:
        return [found.problem]
    return []


class _Found(Exception):
    def __init__(self, path: str, message: str) -> None:
        self.problem = Problem(path, message)


def _check(config: Any) -> None:
    if config["version"] != 2:
        raise _Found("version", "must be 2")
    names: list[str] = []
    for number, service in enumerate(config["services"]):
        path = f"services[{number}]"
        for key in service:
            if key not in SERVICE_KEYS:
                raise _Found(f"{path}.{key}", "unknown key")
        if not NAME.match(service["name"]):
            raise _Found(f"{path}.name", "not a service name")
        if service["name"] in names:
            raise _Found(f"{path}.name", f"duplicate of services[{names.index(service['name'])}].name")
        names.append(service["name"])
        if ":" not in service["image"] or service["image"].endswith(":latest"):
            raise _Found(f"{path}.image", "must have a tag other than latest")
        if not 1 <= service.get("port", 1) <= 65535:
            raise _Found(f"{path}.port", "must be between 1 and 65535")
        if not 0 <= service.get("replicas", 0) <= 50:
            raise _Found(f"{path}.replicas", "must be between 0 and 50")
        if not SIZE.match(service.get("memory", "16Mi")):
            raise _Found(f"{path}.memory", "not a size like 512Mi")
