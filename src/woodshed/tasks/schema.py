"""task.toml as records: Harbor's file (schema 1.4) and our ``[woodshed]`` table. Shape only; meaning is in load.py.

Field names are Harbor's, so that an error names what stands in the file. Source: Harbor's published JSON schema of
``TaskConfig``; ``memory`` and ``storage`` ("2G") and ``allow_internet`` are its older spellings.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from woodshed.model import Framework, Record
from woodshed.model.feedback import Remark
from woodshed.model.person import PersonSpec
from woodshed.tasks.probes import ProbeTable

NEWEST = (1, 4)
"""The newest schema version this reader knows."""


class NetworkMode(StrEnum):
    """Harbor's network policies."""

    NONE = "no-network"
    PUBLIC = "public"
    ALLOWLIST = "allowlist"


class TpuTable(Record):
    """``[environment.tpu]``."""

    type: str = Field(min_length=1)
    topology: str


class McpServerTable(Record):
    """``[[environment.mcp_servers]]``."""

    name: str
    transport: Literal["stdio", "sse", "streamable-http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    headers: dict[str, str] = {}


class HealthcheckTable(Record):
    """``[environment.healthcheck]``."""

    command: str
    interval_sec: float = Field(default=5.0, ge=0)
    timeout_sec: float = Field(default=30.0, gt=0)
    start_period_sec: float = Field(default=0.0, ge=0)
    start_interval_sec: float = Field(default=5.0, ge=0)
    retries: int = Field(default=3, gt=0)


class EnvironmentTable(Record):
    """``[environment]``; None where the file is silent, so that a default is told from a choice."""

    network_mode: NetworkMode | None = None
    allowed_hosts: tuple[str, ...] | None = None
    build_timeout_sec: float = Field(default=600.0, gt=0)
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    memory: str | None = None
    storage: str | None = None
    gpus: int | None = Field(default=None, ge=0)
    gpu_types: tuple[str, ...] | None = None
    tpu: TpuTable | None = None
    mcp_servers: tuple[McpServerTable, ...] = ()
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: HealthcheckTable | None = None
    workdir: str | None = None
    allow_internet: bool | None = None


class AgentTable(Record):
    """``[agent]``."""

    network_mode: NetworkMode | None = None
    allowed_hosts: tuple[str, ...] | None = None
    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None


class CollectTable(Record):
    """``[[verifier.collect]]``."""

    command: str
    service: str = "main"
    timeout_sec: float = Field(default=60.0, gt=0)
    user: str | int | None = None


class VerifierTable(Record):
    """``[verifier]``."""

    network_mode: NetworkMode | None = None
    allowed_hosts: tuple[str, ...] | None = None
    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = {}
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentTable | None = None
    collect: tuple[CollectTable, ...] = ()


class SolutionTable(Record):
    """``[solution]``."""

    env: dict[str, str] = {}


class AuthorTable(Record):
    """One of ``[task] authors``."""

    name: str
    email: str | None = None


class PackageTable(Record):
    """``[task]``: the name under which a registry knows the task."""

    name: str
    version: str | None = Field(default=None, min_length=1)
    description: str = ""
    authors: tuple[AuthorTable, ...] = ()
    keywords: tuple[str, ...] = ()


class ArtifactTable(Record):
    """One of ``artifacts``, where it is no plain path."""

    source: str
    destination: str | None = None
    exclude: tuple[str, ...] = ()
    service: str | None = None


class StepTable(Record):
    """One of ``[[steps]]``."""

    name: str
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    min_reward: float | dict[str, float] | None = None
    healthcheck: HealthcheckTable | None = None
    artifacts: tuple[str | ArtifactTable, ...] = ()


class LimitsTable(Record):
    """``[woodshed.limits]``: what Harbor has no name for, or what overrides its advice."""

    memory_mb: int | None = Field(default=None, gt=0)
    cpus: float | None = Field(default=None, gt=0)
    pids: int | None = Field(default=None, gt=0)
    disk_mb: int | None = Field(default=None, gt=0)
    files: int | None = Field(default=None, gt=0)
    output_bytes: int | None = Field(default=None, gt=0)


class StepOursTable(Record):
    """``[woodshed.steps.NAME]``: what of ``[woodshed]`` a step says for itself."""

    protected: tuple[str, ...] = ()
    expected_tests: tuple[str, ...] | str = ()
    framework: Framework | None = None
    rewards: dict[str, tuple[str, ...]] = {}
    capture: tuple[str, ...] = ()
    probes: dict[str, ProbeTable] = {}


class WoodshedTable(Record):
    """``[woodshed]``: our additions, every one optional. Harbor ignores the table."""

    image: str | None = None
    workspace: str | None = None
    requirements: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    expected_tests: tuple[str, ...] | str = ()
    framework: Framework | None = None
    rewards: dict[str, tuple[str, ...]] = {}
    rules: tuple[dict[str, Any], ...] = ()
    capture: tuple[str, ...] = ()
    limits: LimitsTable = LimitsTable()
    network: Literal["none"] | None = None
    probes: dict[str, ProbeTable] = {}
    feedback: tuple[Remark, ...] = Field(default=(), max_length=50)
    person: PersonSpec | None = None
    steps: dict[str, StepOursTable] = {}


class TaskFile(Record):
    """The whole of task.toml. ``version`` is the older name of ``schema_version``."""

    schema_version: str | None = None
    version: str | None = None
    task: PackageTable | None = None
    metadata: dict[str, Any] = {}
    verifier: VerifierTable = VerifierTable()
    agent: AgentTable = AgentTable()
    environment: EnvironmentTable = EnvironmentTable()
    solution: SolutionTable = SolutionTable()
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: tuple[StepTable, ...] | None = None
    artifacts: tuple[str | ArtifactTable, ...] = ()
    woodshed: WoodshedTable = WoodshedTable()
