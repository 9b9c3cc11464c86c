"""Task: the work to solve. A frozen description; the folders it names hold the files."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import Field

from woodshed.model.policy import Limits
from woodshed.model.record import Record


class Upload(Record):
    """A host file or folder that stands at ``target`` (absolute, in the sandbox) when it opens. Read-only source.

    With ``read_only`` nothing in the sandbox can change, add to or remove it, whoever it is; setup included.
    """

    source: Path
    target: str
    read_only: bool = False


class EnvironmentSpec(Record):
    """The declared world of an attempt, before anything runs.

    ``image`` is ``host`` (the host's /usr, read-only), ``dir:PATH`` (an unpacked root directory), ``oci:PATH[:TAG]``
    (an OCI layout), ``archive:PATH[:TAG]`` (of ``docker save``), ``dockerfile:PATH``, or the name of an image.
    ``requirements`` are pip requirement strings that enter as one content-addressed read-only layer; ``uploads`` are
    files that stand there at the start, owned by the sandbox's root.
    """

    image: str = "host"
    workdir: str = "/workspace"
    requirements: tuple[str, ...] = ()
    uploads: tuple[Upload, ...] = ()
    env: dict[str, str] = {}
    setup: str | None = Field(default=None, description="shell command run once as root when the sandbox opens")
    setup_timeout_s: float = Field(default=600.0, gt=0)
    limits: Limits = Limits()


class Framework(StrEnum):
    """What runs the hidden tests; decides the shape of the canary that is slipped among them."""

    PYTEST = "pytest"
    SCRIPT = "script"
    NODE = "node"


class VerifierSpec(Record):
    """How an end state is judged. ``tests`` holds ``test.sh`` and stands at /tests, only in the verifier's sandbox.

    With ``expected_tests`` (report ids ``classname::name``) a reward needs every one of them passed in a fresh report
    and the canary failed. Without it the reward file of ``test.sh`` decides (assurance ``report_only``).
    ``protected`` are glob patterns relative to the workdir, on top of the built-in ones. ``capture`` are absolute
    paths whose changes the verifier sees; default: the workdir and the task's artifacts. ``rewards`` maps a reward's
    name to the expected tests that must all pass for it to be 1.0 (else 0.0); ``total`` needs every expected test.
    """

    tests: Path
    timeout_s: float = Field(default=600.0, gt=0)
    env: dict[str, str] = {}
    framework: Framework | None = None
    expected_tests: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    capture: tuple[str, ...] = ()
    rewards: dict[str, tuple[str, ...]] = {}


class Task(Record):
    """The work to solve: instruction, environment, verifier, limits. ``digest`` covers every file of its folder."""

    id: str = Field(description="unique in a run: the folder's name, or org/name")
    group: str = Field(default="", description="the set it came from; closing tables group by it")
    folder: Path
    digest: str
    instruction: str
    environment: EnvironmentSpec
    verifier: VerifierSpec
    solution: Path | None = Field(default=None, description="folder with solve.sh; never in an attempt's sandbox")
    solution_env: dict[str, str] = {}
    agent_timeout_s: float = Field(default=600.0, gt=0)
    metadata: dict[str, Any] = {}
