"""Every rule of the README is checked, with its path and message."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from deploycheck import Problem, validate

JSON = dict[str, Any]


def found(config: Any) -> list[str]:
    """The problems as text, sorted; each is reported once."""
    problems = validate(config)
    assert all(isinstance(problem, Problem) for problem in problems)
    texts = sorted(f"{problem.path}: {problem.message}" for problem in problems)
    assert len(texts) == len(set(texts))
    return texts


def service(**keys: Any) -> JSON:
    return {"name": "web", "image": "web:1"} | keys


def of(*services: Any) -> list[str]:
    return found({"version": 2, "services": list(services)})


def of_key(key: str, *values: Any) -> list[list[str]]:
    """For each value of a key of the only service: the messages about it."""
    start = f"services[0].{key}: "
    results = [of(service(**{key: value})) for value in values]
    assert all(text.startswith(start) for texts in results for text in texts)
    return [[text.removeprefix(start) for text in texts] for texts in results]


def chain(*edges: str) -> list[str]:
    """The problems of services a, b, c … that depend on each other: 'a:bc' means a depends on b and c."""
    services = []
    for edge in edges:
        name, _, needs = edge.partition(":")
        services.append(service(name=name, depends_on=list(needs)))
    return of(*services)


def test_good_files_have_no_problems() -> None:
    """The sample, the smallest file, and every limit."""
    assert found(json.loads(Path("/workspace/sample/deploy.json").read_text())) == []
    assert of(service()) == []
    full = service(port=1, replicas=0, memory="16Mi", timeout="1s", env={}, depends_on=[])
    most = service(name="a" + "-" * 29, port=65535, replicas=50, memory="64Gi", timeout="100h", env={"_A1": ""})
    assert of(full, most, service(name="x", memory="65536Mi", depends_on=["web"])) == []


def test_all_problems_are_found_at_once() -> None:
    """A file full of mistakes is reported in one go."""
    config = {
        "version": "2",
        "services": [
            {"name": "Web", "image": "web", "port": 0, "replicas": -1},
            {"image": "db:1", "memory": "1GB", "env": {"a": 1}, "color": "red"},
            "db",
            {"name": "db", "image": "db:latest", "depends_on": ["Web", "db", 7]},
        ],
        "extra": None,
    }
    assert found(config) == [
        "extra: unknown key",
        "services[0].image: must have a tag other than latest",
        "services[0].name: not a service name",
        "services[0].port: must be between 1 and 65535",
        "services[0].replicas: must be between 0 and 50",
        "services[1].color: unknown key",
        "services[1].env.a: expected a string, found an integer",
        "services[1].env.a: not a variable name",
        "services[1].memory: not a size like 512Mi",
        "services[1].name: required",
        "services[2]: expected an object, found a string",
        "services[3].depends_on[0]: unknown service 'Web'",
        "services[3].depends_on[1]: depends on itself",
        "services[3].depends_on[2]: expected a string, found an integer",
        "services[3].image: must have a tag other than latest",
        "version: expected an integer, found a string",
    ]


def test_the_file_as_a_whole() -> None:
    """Whatever JSON it is."""
    named = {"null": None, "a boolean": True, "an integer": 1, "a number": 1.5, "a string": "{}", "a list": []}
    for name, value in named.items():
        assert found(value) == [f"$: expected an object, found {name}"]
    assert found({}) == ["services: required", "version: required"]
    assert found({"version": 2, "services": []}) == ["services: must not be empty"]
    assert found({"version": 2, "services": {}}) == ["services: expected a list, found an object"]
    assert found({"version": 1, "services": None}) == ["services: expected a list, found null", "version: must be 2"]


def test_booleans_and_floats_are_no_integers() -> None:
    """True is not 1, and 2.0 is not 2."""
    assert found({"version": True, "services": [service()]}) == ["version: expected an integer, found a boolean"]
    assert found({"version": 2.0, "services": [service()]}) == ["version: expected an integer, found a number"]
    for key in ("port", "replicas"):
        booleans, floats, texts, nulls = of_key(key, True, 1.0, "1", None)
        assert booleans == ["expected an integer, found a boolean"]
        assert floats == ["expected an integer, found a number"]
        assert texts == ["expected an integer, found a string"]
        assert nulls == ["expected an integer, found null"]


def test_ranges() -> None:
    """Just outside, far outside."""
    assert of_key("port", -1, 0, 65536, 10**30) == [["must be between 1 and 65535"]] * 4
    assert of_key("replicas", -1, 51) == [["must be between 0 and 50"]] * 2
    outside = ["15Mi", "65Gi", "65537Mi", "0Gi", "9" * 5000 + "Gi"]
    assert of_key("memory", *outside) == [["must be between 16Mi and 64Gi"]] * len(outside)


def test_names() -> None:
    """Whole names, of the right letters and length."""
    bad = ["", "Web", "1web", "-web", "we_b", "web ", "web\n", "wéb", "a" * 31, "web1٣"]
    assert of_key("name", *bad) == [["not a service name"]] * len(bad)
    assert of_key("name", 7, None) == [["expected a string, found an integer"], ["expected a string, found null"]]


def test_sizes_and_durations() -> None:
    """Whole values in ASCII digits."""
    bad = ["", "512", "512M", "512mi", " 512Mi", "512Mi\n", "1.5Gi", "-1Gi", "٥١٢Mi", "Mi", "512 Mi"]
    assert of_key("memory", *bad) == [["not a size like 512Mi"]] * len(bad)
    assert of_key("memory", 512) == [["expected a string, found an integer"]]
    bad = ["", "30", "0s", "030s", "30S", "30s\n", "1m30s", "-1s", "1.5h", "1d", "٣s", "30 s"]
    assert of_key("timeout", *bad) == [["not a duration like 30s"]] * len(bad)
    assert of_key("timeout", 30) == [["expected a string, found an integer"]]


def test_images() -> None:
    """A tag is needed; the port of a registry is none."""
    good = ["web:1", "shop/web:v1.4-rc", "registry:5000/web:1", "web:latest-stable", "web:1@sha256:ab", "web@sha256:ab"]
    assert of_key("image", *good) == [[]] * len(good)
    bad = ["", "web", "web:", "web:latest", "registry:5000/web", "registry:5000/web:latest", "a/b", "web:latest/app"]
    assert of_key("image", *bad) == [["must have a tag other than latest"]] * len(bad)
    blank = [" ", "web 1", "web:1\n", "\tweb:1", "web:1\u00a0"]
    assert of_key("image", *blank) == [["must not contain blanks"]] * len(blank)


def test_unknown_keys() -> None:
    """With a hint where only case or a dash is wrong, and the path in brackets where it has to be."""
    keys = {"Port": 1, "depends-on": [], "DEPENDS-ON": [], "prot": 1, "my key": 1, "1st": 1, "": 1, 'q"': 1}
    assert of(service(**keys)) == sorted([
        "services[0].Port: unknown key, did you mean 'port'?",
        "services[0][\"depends-on\"]: unknown key, did you mean 'depends_on'?",
        "services[0][\"DEPENDS-ON\"]: unknown key, did you mean 'depends_on'?",
        "services[0].prot: unknown key",
        'services[0]["my key"]: unknown key',
        'services[0]["1st"]: unknown key',
        'services[0][""]: unknown key',
        'services[0]["q\\""]: unknown key',
    ])
    assert found({"Version": 2, "services": [service()]}) == [
        "Version: unknown key, did you mean 'version'?",
        "version: required",
    ]
    assert found({"version": 2, "services": [service()], "my key": 1}) == ['["my key"]: unknown key']


def test_environment() -> None:
    """Names of variables and their values."""
    assert of(service(env={"a": "", "B-C": "", "1A": "", "A\n": "", "OK": 1, "NO": None})) == [
        "services[0].env.NO: expected a string, found null",
        "services[0].env.OK: expected a string, found an integer",
        "services[0].env.a: not a variable name",
        'services[0].env["1A"]: not a variable name',
        'services[0].env["A\\n"]: not a variable name',
        'services[0].env["B-C"]: not a variable name',
    ]
    assert of(service(env=["A=1"])) == ["services[0].env: expected an object, found a list"]


def test_duplicates() -> None:
    """Later ones are reported, each with the first; what is invalid is no duplicate."""
    assert of(service(port=80), service(), service(name="b", port=80), service(name="web", port=80)) == [
        "services[1].name: duplicate of services[0].name",
        "services[2].port: duplicate of services[0].port",
        "services[3].name: duplicate of services[0].name",
        "services[3].port: duplicate of services[0].port",
    ]
    assert of(service(name="A", port=0), service(name="A", port=0)) == [
        "services[0].name: not a service name",
        "services[0].port: must be between 1 and 65535",
        "services[1].name: not a service name",
        "services[1].port: must be between 1 and 65535",
    ]
    assert of(service(name="a", port=1), service(name="b", port=True)) == [
        "services[1].port: expected an integer, found a boolean"
    ]


def test_dependencies() -> None:
    """Unknown, doubled, one's own; also on services that come later in the file."""
    assert of(service(depends_on=["db", "db", "no", "web"]), service(name="db")) == [
        "services[0].depends_on[1]: duplicate of services[0].depends_on[0]",
        "services[0].depends_on[2]: unknown service 'no'",
        "services[0].depends_on[3]: depends on itself",
    ]
    assert of(service(depends_on="db")) == ["services[0].depends_on: expected a list, found a string"]
    assert of(service(depends_on=[["db"], {}, None])) == [
        "services[0].depends_on[0]: expected a string, found a list",
        "services[0].depends_on[1]: expected a string, found an object",
        "services[0].depends_on[2]: expected a string, found null",
    ]
    assert of({"image": "a:1", "depends_on": ["web"]}, service()) == ["services[0].name: required"]


def test_no_cycle_where_there_is_none() -> None:
    """A diamond and a long way round are fine."""
    assert chain("a:bc", "b:d", "c:d", "d:") == []
    assert chain("a:bd", "b:c", "c:d", "d:") == []


def test_a_cycle_is_reported_once() -> None:
    """At its first service in the file, beginning with it; services that lead into it are not part of it."""
    assert chain("a:b", "b:a") == ["services[0].depends_on: cycle: a -> b -> a"]
    assert chain("c:a", "a:b", "b:c") == ["services[0].depends_on: cycle: c -> a -> b -> c"]
    assert chain("a:b", "b:c", "c:b") == ["services[1].depends_on: cycle: b -> c -> b"]
    assert chain("a:", "d:ac", "c:b", "b:d") == ["services[1].depends_on: cycle: d -> c -> b -> d"]
    assert chain("a:b", "b:a", "c:d", "d:c") == [
        "services[0].depends_on: cycle: a -> b -> a",
        "services[2].depends_on: cycle: c -> d -> c",
    ]
    assert chain("a:ab", "b:a") == [
        "services[0].depends_on: cycle: a -> b -> a",
        "services[0].depends_on[0]: depends on itself",
    ]


def test_long_chains_are_no_problem() -> None:
    """Neither in time nor in depth."""
    count = 3_000
    services = [service(name=f"s{n}", depends_on=[f"s{n + 1}"] if n + 1 < count else []) for n in range(count)]
    assert of(*services) == []


def test_the_command(tmp_path: Path) -> None:
    """One line a problem, and the status says which kind of file it was."""
    texts = {0: json.dumps({"version": 2, "services": [service()]}), 1: '{"version": 1}', 2: "{"}
    for status, text in texts.items():
        (tmp_path / "deploy.json").write_text(text)
        argv = [sys.executable, "-m", "deploycheck", str(tmp_path / "deploy.json")]
        done = subprocess.run(argv, cwd="/workspace", capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        assert sorted(done.stdout.splitlines()) == (["services: required", "version: must be 2"] if status == 1 else [])
