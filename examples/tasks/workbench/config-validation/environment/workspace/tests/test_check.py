from __future__ import annotations

import json
from pathlib import Path

from deploycheck import Problem, validate

SAMPLE = Path(__file__).parents[1] / "sample" / "deploy.json"


def test_the_sample_has_no_problems() -> None:
    assert validate(json.loads(SAMPLE.read_text())) == []


def test_a_wrong_version_is_found() -> None:
    config = {"version": 3, "services": [{"name": "web", "image": "web:1"}]}
    assert validate(config) == [Problem("version", "must be 2")]


def test_a_port_out_of_range_is_found() -> None:
    config = {"version": 2, "services": [{"name": "web", "image": "web:1", "port": 70000}]}
    assert validate(config) == [Problem("services[0].port", "must be between 1 and 65535")]
