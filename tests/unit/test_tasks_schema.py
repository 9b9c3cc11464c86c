"""Our records know every key of Harbor's schema 1.4 (the lists are copied from its published JSON schema)."""

from __future__ import annotations

import pytest

from woodshed.model import Record
from woodshed.tasks import schema

HARBOR: dict[type[Record], str] = {
    schema.TaskFile: "schema_version task metadata verifier agent environment solution source "
                     "multi_step_reward_strategy steps artifacts",
    schema.AgentTable: "network_mode allowed_hosts timeout_sec user",
    schema.ArtifactTable: "source destination exclude service",
    schema.AuthorTable: "name email",
    schema.EnvironmentTable: "network_mode allowed_hosts build_timeout_sec docker_image os cpus memory_mb storage_mb "
                             "gpus gpu_types tpu mcp_servers env skills_dir healthcheck workdir allow_internet",
    schema.HealthcheckTable: "command interval_sec timeout_sec start_period_sec start_interval_sec retries",
    schema.McpServerTable: "name transport url command args headers",
    schema.PackageTable: "name version description authors keywords",
    schema.SolutionTable: "env",
    schema.StepTable: "name agent verifier min_reward healthcheck artifacts",
    schema.TpuTable: "type topology",
    schema.CollectTable: "command service timeout_sec user",
    schema.VerifierTable: "network_mode allowed_hosts timeout_sec env user environment_mode environment collect",
}
OLDER = {schema.TaskFile: {"version", "woodshed"}, schema.EnvironmentTable: {"memory", "storage"}}
"""Older names of Harbor's, and our own table."""


@pytest.mark.parametrize("record", list(HARBOR), ids=lambda record: record.__name__)
def test_a_table_has_harbors_keys_and_no_others(record: type[Record]) -> None:
    """Each record's fields are exactly the schema's, but for older names and the table that is ours."""
    assert set(record.model_fields) - OLDER.get(record, set()) == set(HARBOR[record].split())


def test_every_value_harbor_allows_is_read() -> None:
    """A file with a value for every key parses: what we do not run is recognised before it is refused."""
    environment = {
        "network_mode": "allowlist", "allowed_hosts": ["*.example.org"], "build_timeout_sec": 1, "docker_image": "a",
        "os": "windows", "cpus": 1.5, "memory_mb": 1, "storage_mb": 1, "gpus": 0, "gpu_types": ["T4"],
        "tpu": {"type": "v4", "topology": "2x2"}, "env": {"A": "b"}, "skills_dir": "s", "workdir": "/w",
        "mcp_servers": [{"name": "a", "transport": "stdio", "command": "c", "args": ["d"], "headers": {"e": "f"}}],
        "healthcheck": {"command": "c", "retries": 1}, "allow_internet": False,
    }
    phase = {"network_mode": "public", "allowed_hosts": [], "timeout_sec": 1.5, "user": 0}
    verifier = {**phase, "env": {}, "environment_mode": "separate", "environment": environment,
                "collect": [{"command": "c", "service": "s", "timeout_sec": 1, "user": "u"}]}
    artifacts = ["/a", {"source": "/b", "destination": "c", "exclude": ["d"], "service": "e"}]
    step = {"name": "s", "agent": phase, "verifier": verifier, "min_reward": {"reward": 0.5}, "artifacts": artifacts}
    parsed = schema.TaskFile.parse({
        "schema_version": "1.4", "metadata": {"free": [1]}, "verifier": verifier, "agent": phase,
        "environment": environment, "solution": {"env": {"A": "b"}}, "source": "x", "artifacts": artifacts,
        "multi_step_reward_strategy": "final", "steps": [step, {"name": "t", "min_reward": 1}],
        "task": {"name": "a/b", "version": "1", "description": "d", "authors": [{"name": "n", "email": "e"}],
                 "keywords": ["k"]},
    })
    assert parsed.steps is not None
    assert parsed.steps[0].verifier.environment is not None
