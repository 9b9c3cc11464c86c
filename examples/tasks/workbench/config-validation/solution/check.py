"""The rules of README.md."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from deploycheck.cycles import find_cycles

NAME = re.compile(r"[a-z][a-z0-9-]{0,29}")
SIZE = re.compile(r"0*([0-9]+)(Mi|Gi)")
DURATION = re.compile(r"[1-9][0-9]*[smh]")
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MEBIBYTES = {"Mi": 1, "Gi": 1024}
FILE_KEYS: dict[str, type] = {"version": int, "services": list}
SERVICE_KEYS: dict[str, type] = {
    "name": str,
    "image": str,
    "port": int,
    "replicas": int,
    "memory": str,
    "timeout": str,
    "env": dict,
    "depends_on": list,
}
TYPES: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}

Object = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """What is wrong, and where."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def validate(config: Any) -> list[Problem]:
    """All problems of a deployment file that was read as JSON."""
    check = _Check()
    check.file(config)
    return check.problems


class _Check:
    """Collects the problems of one file."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def file(self, config: Any) -> None:
        if not self._has_type(config, dict, "$"):
            return
        good = self._keys(config, "", FILE_KEYS, required=("version", "services"))
        if good.get("version", 2) != 2:
            self._add("version", "must be 2")
        if good.get("services") == []:
            self._add("services", "must not be empty")
        services = {}
        for number, service in enumerate(good.get("services", [])):
            path = f"services[{number}]"
            if self._has_type(service, dict, path):
                services[path] = self._keys(service, path, SERVICE_KEYS, required=("name", "image"))
                self._service(services[path], path)
        self._services(services)

    def _service(self, service: Object, path: str) -> None:
        """The rules that concern one service alone."""
        if "image" in service:
            self._image(service["image"], f"{path}.image")
        if not 0 <= service.get("replicas", 0) <= 50:
            self._add(f"{path}.replicas", "must be between 0 and 50")
        if "memory" in service:
            self._memory(service["memory"], f"{path}.memory")
        if not DURATION.fullmatch(service.get("timeout", "1s")):
            self._add(f"{path}.timeout", "not a duration like 30s")
        for key, value in service.get("env", {}).items():
            key_path = _join(f"{path}.env", key)
            if not VARIABLE.fullmatch(key):
                self._add(key_path, "not a variable name")
            self._has_type(value, str, key_path)

    def _services(self, services: dict[str, Object]) -> None:
        """The rules that concern the services together."""
        names: dict[Any, str] = {}
        ports: dict[Any, str] = {}
        for path, service in services.items():
            if "name" in service and not NAME.fullmatch(service["name"]):
                self._add(f"{path}.name", "not a service name")
            elif "name" in service:
                self._first(service["name"], f"{path}.name", names)
            if not 1 <= service.get("port", 1) <= 65535:
                self._add(f"{path}.port", "must be between 1 and 65535")
            elif "port" in service:
                self._first(service["port"], f"{path}.port", ports)
        graph: dict[str, list[str]] = {}
        for path, service in services.items():
            needs = self._dependencies(service, f"{path}.depends_on", names)
            if names.get(service.get("name")) == f"{path}.name":
                graph[service["name"]] = needs
        for cycle in find_cycles(graph):
            path = names[cycle[0]].removesuffix("name") + "depends_on"
            self._add(path, f"cycle: {' -> '.join([*cycle, cycle[0]])}")

    def _dependencies(self, service: Object, path: str, names: dict[Any, str]) -> list[str]:
        """Check ``depends_on``; return the dependencies that are other services."""
        seen: dict[Any, str] = {}
        for number, name in enumerate(service.get("depends_on", [])):
            item = f"{path}[{number}]"
            if not self._has_type(name, str, item) or not self._first(name, item, seen):
                continue
            if name not in names:
                self._add(item, f"unknown service {name!r}")
            elif name == service.get("name"):
                self._add(item, "depends on itself")
        return [name for name in seen if name in names and name != service.get("name")]

    def _image(self, image: str, path: str) -> None:
        if any(letter.isspace() for letter in image):
            self._add(path, "must not contain blanks")
            return
        repository, _, digest = image.partition("@")
        _, _, tag = repository.rpartition("/")[2].partition(":")
        if not digest and tag in {"", "latest"}:
            self._add(path, "must have a tag other than latest")

    def _memory(self, memory: str, path: str) -> None:
        match = SIZE.fullmatch(memory)
        if match is None:
            self._add(path, "not a size like 512Mi")
        elif len(match[1]) > 9 or not 16 <= int(match[1]) * MEBIBYTES[match[2]] <= 64 * 1024:
            self._add(path, "must be between 16Mi and 64Gi")

    def _keys(self, found: Object, path: str, known: dict[str, type], required: tuple[str, ...]) -> Object:
        """Check the keys and the types of their values; return those that are right."""
        good = {}
        for key, value in found.items():
            if key not in known:
                meant = key.lower().replace("-", "_")
                hint = f", did you mean {meant!r}?" if meant in known else ""
                self._add(_join(path, key), f"unknown key{hint}")
            elif self._has_type(value, known[key], _join(path, key)):
                good[key] = value
        for key in required:
            if key not in found:
                self._add(_join(path, key), "required")
        return good

    def _has_type(self, value: Any, expected: type, path: str) -> bool:
        if type(value) is expected:  # a boolean is an int to isinstance
            return True
        self._add(path, f"expected {TYPES[expected]}, found {TYPES.get(type(value), 'something else')}")
        return False

    def _first(self, value: Any, path: str, seen: dict[Any, str]) -> bool:
        """Whether ``value`` was not seen before; if it was, that is a problem."""
        first = seen.setdefault(value, path)
        if first != path:
            self._add(path, f"duplicate of {first}")
        return first == path

    def _add(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))


def _join(path: str, key: str) -> str:
    if not PLAIN_KEY.fullmatch(key):
        return f"{path}[{json.dumps(key)}]"
    return f"{path}.{key}" if path else key
