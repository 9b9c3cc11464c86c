"""Task: the work to solve. A frozen description; the folders it names hold the files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field

from woodshed.model.feedback import Remark
from woodshed.model.network import NetworkPolicy
from woodshed.model.person import PersonSpec
from woodshed.model.policy import Limits
from woodshed.model.probe import Probe
from woodshed.model.record import Record
from woodshed.model.rules import RuleSet

HOST_VALUE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
"""The value of a variable that is to be the host's."""


class Upload(Record):
    """A host file or folder that stands at ``target`` (absolute, in the sandbox) when it opens. Read-only source.

    With ``read_only`` nothing in the sandbox can change, add to or remove it, whoever it is; setup included.
    """

    source: Path
    target: str
    read_only: bool = False


class Program(Record):
    """A program of others that stands at ``/opt/programs/NAME``, read-only, beside what the task declares.

    ``pip`` are requirement strings, installed into an environment of their own; ``npm`` are ``PACKAGE@VERSION``.
    ``without`` names distributions that a requirement pulls in and the program never imports here.
    """

    name: str = Field(pattern="^[a-z0-9][a-z0-9._-]{0,63}$")
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where it stands. Its executables are in ``bin`` there."""
        return f"/opt/programs/{self.name}"


class Healthcheck(Record):
    """A command that says, by exit status 0, that the world is ready. Asked until it does, or failed too often.

    Failures count after ``start_period_s`` seconds; ``retries`` of them in a row are too many.
    """

    command: str
    interval_s: float = Field(default=5.0, ge=0)
    timeout_s: float = Field(default=30.0, gt=0)
    start_period_s: float = Field(default=0.0, ge=0)
    start_interval_s: float = Field(default=5.0, ge=0)
    retries: int = Field(default=3, gt=0)


class Collect(Record):
    """A command run in the agent's sandbox once it stopped, before anything is ended: live state becomes files."""

    command: str
    timeout_s: float = Field(default=60.0, gt=0)
    user: str = Field(default="", description="a name or a number; empty: as commands run there")


class EnvironmentSpec(Record):
    """The declared world of an attempt, before anything runs.

    ``image`` is ``host`` (the host's /usr, read-only), ``dir:PATH`` (an unpacked root directory), ``oci:PATH[:TAG]``
    (an OCI layout), ``archive:PATH[:TAG]`` (of ``docker save``), ``dockerfile:PATH``, or the name of an image.
    ``requirements`` are pip requirement strings that enter as one content-addressed read-only layer; ``uploads`` are
    files that stand there at the start, owned by the sandbox's root. ``workdir`` may be empty: then the image's own.
    ``user`` is as whom commands run, ``USER[:GROUP]`` by the image's own names; empty: as the image says.
    ``programs`` are what an agent runs there; no task declares any.
    """

    image: str = "host"
    workdir: str = "/workspace"
    user: str = ""
    requirements: tuple[str, ...] = ()
    uploads: tuple[Upload, ...] = ()
    env: dict[str, str] = {}
    setup: str | None = Field(default=None, description="shell command run once as root when the sandbox opens")
    setup_timeout_s: float = Field(default=600.0, gt=0)
    healthcheck: Healthcheck | None = None
    limits: Limits = Limits()
    programs: tuple[Program, ...] = ()


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

    ``environment`` is a world of the verifier's own: what crosses over is then the ``capture`` alone, whole and not as
    changes. ``common_tests`` stand at /tests below ``tests``. ``user`` runs test.sh; empty: root.
    """

    tests: Path
    common_tests: Path | None = None
    environment: EnvironmentSpec | None = None
    network: NetworkPolicy = NetworkPolicy()
    user: str = ""
    collect: tuple[Collect, ...] = ()
    left_out: dict[str, tuple[str, ...]] = Field(default={}, description="captured path → patterns; own world only")
    timeout_s: float = Field(default=600.0, gt=0)
    within_s: float | None = Field(default=None, gt=0, description="for all of it, by a run's deadline; no task's own")
    env: dict[str, str] = {}
    framework: Framework | None = None
    expected_tests: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    capture: tuple[str, ...] = ()
    rewards: dict[str, tuple[str, ...]] = {}
    probes: tuple[Probe, ...] = Field(default=(), description="asked apart from the tests; each must pass")


class TaskStep(Record):
    """A part of a task of several steps: told, worked on and judged after the one before it, in the same sandbox.

    ``workdir`` holds files that are put into the working folder first; ``setup`` says that its setup.sh is then run.
    The steps after it are not reached unless it has at least ``min_reward`` of each reward named there.
    """

    name: str
    instruction: str
    workdir: Path | None = None
    setup: bool = False
    healthcheck: Healthcheck | None = None
    verifier: VerifierSpec
    solution: Path | None = None
    agent_timeout_s: float = Field(default=600.0, gt=0)
    min_reward: dict[str, float] = {}


class Task(Record):
    """The work to solve: instruction, environment, verifier, limits. ``digest`` covers every file of its folder.

    With ``steps`` an attempt works on each of :meth:`at`; its reward is their ``mean``, or the ``final`` one's.
    ``instruction``, ``verifier`` and ``solution`` are then the last step's. ``network`` is what the agent may reach.
    """

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
    rules: RuleSet | None = Field(default=None, description="reward rules; a run's own take their place")
    network: NetworkPolicy = NetworkPolicy()
    feedback: tuple[Remark, ...] = Field(default=(), description="what its simulated person says, and when")
    person: PersonSpec | None = Field(default=None, description="who may speak, played by a model")
    steps: tuple[TaskStep, ...] = ()
    step_reward: Literal["mean", "final"] = "mean"
    whole: Task | None = Field(default=None, description="of one step (:meth:`at`): the task, which has this ``step``")
    step: int = 0

    @property
    def judged_in(self) -> EnvironmentSpec:
        """The world in which the end state is judged."""
        return self.verifier.environment or self.environment

    def judged_within(self, seconds: float | None) -> Task:
        """This task, its verifier to be done after so many seconds; itself for None."""
        if seconds is None:
            return self
        return self.model_copy(update={"verifier": self.verifier.model_copy(update={"within_s": seconds})})

    @property
    def step_name(self) -> str | None:
        """Of one step: its name."""
        return None if self.whole is None else self.whole.steps[self.step].name

    def at(self, index: int) -> Task:
        """The task of one step: its world has the files of this step and those before it."""
        step = self.steps[index]
        brought = tuple(Upload(source=earlier.workdir, target=self.environment.workdir)
                        for earlier in self.steps[: index + 1] if earlier.workdir is not None)
        world = self.environment.model_copy(update={"uploads": (*self.environment.uploads, *brought)})
        return self.model_copy(update={
            "environment": world, "instruction": step.instruction, "verifier": step.verifier, "steps": (),
            "whole": self, "step": index, "solution": step.solution, "agent_timeout_s": step.agent_timeout_s,
        })

    def lent(self, values: Mapping[str, str]) -> Task:
        """This task with ``values`` (the host's variables) in the place of ``${NAME}``; itself where it has none.

        The loader leaves that only where the operator lends the variable (setting ``task_env``). What this gives is
        for a sandbox, never for a record. Raises KeyError.
        """
        if not any("${" in text for text in self._declared_values()):
            return self
        steps = [one.model_copy(update={"verifier": _lent(one.verifier, values)}) for one in self.steps]
        changed = {"environment": _lent(self.environment, values), "verifier": _lent(self.verifier, values),
                   "solution_env": _values(self.solution_env, values), "steps": tuple(steps)}
        return self.model_copy(update=changed)

    def _declared_values(self) -> Iterator[str]:
        yield from self.environment.env.values()
        yield from self.solution_env.values()
        for verifier in (self.verifier, *(step.verifier for step in self.steps)):
            yield from verifier.env.values()
            if verifier.environment is not None:
                yield from verifier.environment.env.values()


_Spec = TypeVar("_Spec", EnvironmentSpec, VerifierSpec)


def _lent(spec: _Spec, values: Mapping[str, str]) -> _Spec:
    changed: dict[str, Any] = {"env": _values(spec.env, values)}
    if isinstance(spec, VerifierSpec) and spec.environment is not None:
        changed["environment"] = _lent(spec.environment, values)
    return spec.model_copy(update=changed)


def _values(env: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    return {name: values[text[2:-1]] if HOST_VALUE.fullmatch(text) else text for name, text in env.items()}
