"""A Dockerfile becomes an image: stage by stage, one layer a step, each named by everything it was made from.

A step's layer is named by the sha256 of the layers below it, what the step says, and the contents it copies. A layer of
that name which is here already is the step's outcome: that is the whole cache, shared by all Dockerfiles of a home.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from woodshed import dockerfile
from woodshed.dockerfile import Beyond, Dockerfile, Ignored, Instruction, Stage, refuse
from woodshed.dockerfile.parse import filled
from woodshed.dockerfile.stages import argument, automatic, environment, joined, machine
from woodshed.errors import EnvironmentFault, ImageFault, UsageError
from woodshed.model import Limits, SandboxPolicy
from woodshed.sandbox.images import reference
from woodshed.sandbox.images.container import FORMAT, Image, Tell, most_bytes
from woodshed.sandbox.images.crossing import Crossing
from woodshed.sandbox.images.dockerfile.context import Context
from woodshed.sandbox.images.dockerfile.files import Copier
from woodshed.sandbox.images.dockerfile.mounts import mounted
from woodshed.sandbox.images.dockerfile.others import built_by_another
from woodshed.sandbox.images.dockerfile.state import Bases, Order, State
from woodshed.sandbox.images.dockerfile.steps import Command, Place, run, settle
from woodshed.sandbox.images.oci import Config
from woodshed.sandbox.images.requirement import key
from woodshed.sandbox.images.unpack import MOST_FILES
from woodshed.sandbox.images.view import View
from woodshed.sandbox.native import layering
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.ids import privileged
from woodshed.settings import setting

MOST_LAYERS = 200
"""Of one image: each costs a descriptor when a sandbox is made, of which a message carries 253."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELL = ("/bin/sh", "-c")
_PIDS = 8192
_TOLD = frozenset({"EXPOSE", "HEALTHCHECK", "MAINTAINER", "STOPSIGNAL", "VOLUME"})
"""Without any meaning for a sandbox: no port is published, nothing is checked, no volume is mounted."""


def build_file(path: Path, bases: Bases, tell: Tell | None = None) -> Image:
    """The image of the Dockerfile ``path``, or of that in the folder ``path``, which is its context then."""
    file = path / "Dockerfile" if path.is_dir() else path
    return build(Order(file, file.parent, policy=policy_of_setting()), bases, tell)


def policy_of_setting() -> SandboxPolicy:
    """The policy of commands that RUN runs, as the setting ``build_policy`` says; else none may reach a network.

    Raises UsageError.
    """
    name = setting("build_policy")
    if not name:
        return SandboxPolicy()
    file = Path(name).expanduser()
    try:
        declared = tomllib.loads(file.read_bytes().decode())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"is no policy in TOML: {error}", file=file, field="WOODSHED_BUILD_POLICY",
                         remedy="docs/policy.md shows an example.") from None
    return SandboxPolicy.parse(declared, file=file)


def build(order: Order, bases: Bases, tell: Tell | None = None) -> Image:
    """The image that ``order`` asks for, kept by its id. Blocking.

    What cannot be built here is given to buildah, podman or docker where one is installed. Raises UsageError naming
    file and line, ImageFault, EnvironmentFault.
    """
    text = _text(order.file)
    if not order.context.is_dir():
        raise UsageError("is no folder", file=order.context, field="context", remedy="Name the folder to copy from.")
    try:
        parsed = dockerfile.read(text, order.file, order.arguments)
        image = _Build(parsed, order, bases, tell).image(parsed.target(order.target))
    except Beyond as beyond:
        image = built_by_another(order, bases, beyond, tell)
    bases.shelf.keep(image)
    return image


def _acting(user: str) -> str:
    """As it names a step: a user is one with its groups."""
    return f"{user} with groups" if user else ""


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(dockerfile.stages.MAX_BYTES + 1).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8 (byte {error.start})", file=file, remedy="Save it as UTF-8.") from None
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", file=file, remedy="Check the path.") from None


def _ignored(order: Order) -> Ignored:
    for file in (order.file.with_name(f"{order.file.name}.dockerignore"), order.context / ".dockerignore"):
        if file.is_file():
            return Ignored(_text(file), file)
    return Ignored()


class _Build:
    def __init__(self, parsed: Dockerfile, order: Order, bases: Bases, tell: Tell | None) -> None:
        self.parsed, self.order, self.bases, self.tell = parsed, order, bases, tell
        self.context = Context(order.context, _ignored(order))
        self._stages: dict[int, Image] = {}
        limits = Limits(disk_mb=(most_bytes() >> 20) + 1, files=MOST_FILES, pids=_PIDS)
        self.policy = order.policy.model_copy(update={"limits": limits})
        self.copier = Copier(self)

    # -- stages --------------------------------------------------------------------------------------------------------

    def image(self, stage: Stage) -> Image:
        """The stage's image, with those it needs: others are not built."""
        if stage.index not in self._stages:
            state = self._begin(stage)
            for step in stage.steps:
                self._step(state, step, stage)
            self._stages[stage.index] = Image(state.layers, state.config)
        return self._stages[stage.index]

    def _begin(self, stage: Stage) -> State:
        if stage.platform and stage.platform.split("/")[:2] != ["linux", machine()]:
            self.refuse(stage.line, f"{stage.platform} is another machine than this one", beyond=True)
        base = self.other(stage.base, stage.index, stage.line)
        config = base.config if base.config.env.get("PATH") else replace(
            base.config, env={"PATH": _PATH, **base.config.env})
        return State(base.layers, config)

    def other(self, name: str, before: int, line: int) -> Image:
        """An earlier stage, or an image from elsewhere. Raises UsageError naming the line."""
        stage = self.parsed.named(name, before)
        if stage is not None:
            return self.image(stage)
        if name == "scratch":
            return Image((), Config())
        try:
            reference.parse(name)  # a Dockerfile may be an enemy's: it names no place of this machine
            return self.bases.get(name if name.startswith(reference.PREFIX) else reference.PREFIX + name, self.tell)
        except UsageError as error:
            self.refuse(line, error.message, error.remedy)
        except EnvironmentFault as error:
            raise type(error)(f"{self.order.file}: line {line}: {name}: {error}") from error

    def refuse(self, line: int, message: str, remedy: str | None = None, *, beyond: bool = False) -> NoReturn:
        """Raise the UsageError of this file."""
        refuse(self.order.file, line, message, remedy, beyond=beyond)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _step(self, state: State, step: Instruction, stage: Stage) -> None:
        act: Callable[[State, Instruction, Stage], None] | None = getattr(self, f"_{step.keyword.lower()}", None)
        if self.tell is not None and step.keyword in ("RUN", "COPY", "ADD"):
            self.tell(f"line {step.line}: {step.keyword} {step.text[:100]}")
        try:
            if act is not None:
                act(state, step, stage)
            elif step.keyword not in _TOLD:
                self.refuse(step.line, f"{step.keyword} is not supported", beyond=True)
            if len(state.layers) > MOST_LAYERS:
                self.refuse(step.line, f"more than {MOST_LAYERS} layers, which no sandbox can be made of",
                            "Join some of the commands before.")
        except Beyond:
            raise
        except UsageError as error:
            if error.file is not None:
                raise
            self.refuse(step.line, error.message, error.remedy)
        except ImageFault as fault:
            raise ImageFault(f"{self.order.file}: line {step.line}: {step.keyword}: {fault}") from fault

    def fill(self, state: State, step: Instruction, text: str) -> str:
        """``text`` with its variables put in."""
        return filled(step, text, state.variables, self.order.file, self.parsed.escape)

    def source(self, name: str, stage: Stage, line: int) -> Image:
        """What ``--from`` names: a stage before this one, or an image."""
        if name.isdigit() and self.parsed.named(name, stage.index) is None:
            self.refuse(line, f"there is no stage {name} before this one")
        return self.other(name, stage.index, line)

    def layer(self, name: str, make: Callable[[Path, Crossing], None]) -> str:
        """The layer ``name`` of the store; ``make`` fills a directory where it is not there."""
        crossing = self.bases.crossing

        def fill(into: Path) -> None:
            if crossing is None:
                raise EnvironmentFault("a Dockerfile's step is to be done, and there is no sandbox to do it in")
            make(into, crossing)

        return self.bases.layers.make(name, fill).name

    def place(self, layers: tuple[str, ...], config: Config, workdir: str = "/") -> Place:
        """Where a step acts: a sandbox of these layers."""
        return Place(f"build:{self.bases.shelf.keep(Image(layers, config))}", self.policy, workdir)

    def key(self, what: str, layers: tuple[str, ...], *parts: object) -> str:
        """The name of a step's layer."""
        return key(FORMAT, "step", what, "owners" if privileged() else "one owner", repr(layers), repr(parts))

    def _run(self, state: State, step: Instruction, stage: Stage) -> None:
        argv = self._argv(state, step)
        extra = mounted(self, state, step, stage)
        env = {name: value for name, value in state.arguments.items() if name not in state.config.env}
        config = Config(env=state.config.env, user=state.config.user)
        below = (*extra, *state.layers)
        name = self.key("run", below, argv, sorted(env.items()), sorted(config.env.items()), state.config.workdir,
                        _acting(state.config.user), self.policy.model_dump_json(exclude={"limits"}))
        command = Command(argv, env, self.order.timeout_s)

        def make(into: Path, crossing: Crossing) -> None:
            place = self.place(below, config, state.config.workdir)
            crossing(lambda engine: run(engine, place, command, into, self.tell))

        state.layers = (self.layer(name, make), *state.layers)

    def _argv(self, state: State, step: Instruction) -> tuple[str, ...]:
        if (array := step.array) is not None:
            if not array:
                self.refuse(step.line, "RUN [] names no command")
            return tuple(array)
        shell = state.config.shell or _SHELL
        if len(step.heredocs) == 1 and step.text.split() == [step.text] and step.heredocs[0].fd == 0:
            doc = step.heredocs[0]  # the document is the whole command
            if doc.body.startswith("#!"):
                script = "/dev/shm/woodshed-run"  # noqa: S108 (the sandbox's memory)
                quoted = "'" + doc.body.replace("'", "'\\''") + "'"
                return ("/bin/sh", "-c", f"printf %s {quoted} > {script} && chmod 755 {script} && exec {script}")
            return (*shell, doc.body)
        return (*shell, step.source)

    def _copy(self, state: State, step: Instruction, stage: Stage) -> None:
        self.copier.copy(state, step, stage)

    _add = _copy

    def _workdir(self, state: State, step: Instruction, stage: Stage) -> None:
        path = joined(state.config.workdir, self.fill(state, step, step.text), step, self.order.file)
        state.config = replace(state.config, workdir=path)
        if View([self.bases.layers.path(layer) for layer in state.layers]).is_directory(path):
            return

        def make(into: Path, crossing: Crossing) -> None:
            async def work(box: NativeSandbox) -> None:
                await layering.unpack(box.link, lambda write: write(bytes(1024)), path, owners=True)

            place = self.place(state.layers, Config())
            crossing(lambda engine: settle(engine, place, into, work))

        state.layers = (self.layer(self.key("workdir", state.layers, path), make), *state.layers)

    # -- what only the configuration tells -----------------------------------------------------------------------------

    def _env(self, state: State, step: Instruction, stage: Stage) -> None:
        new = environment(step, state.variables, self.order.file, self.parsed.escape)
        if any("\0" in name + value or not name for name, value in new.items()):
            self.refuse(step.line, "ENV has a name or value that no process can have")
        state.config = replace(state.config, env={**state.config.env, **new})

    def _arg(self, state: State, step: Instruction, stage: Stage) -> None:
        known = {**automatic(), **self.parsed.arguments}
        for name, default in argument(step, state.variables, self.order.file, self.parsed.escape):
            given = self.order.arguments.get(name, default if default is not None else known.get(name))
            if given is not None:
                state.arguments[name] = given

    def _label(self, state: State, step: Instruction, stage: Stage) -> None:
        new = environment(step, state.variables, self.order.file, self.parsed.escape)
        state.config = replace(state.config, labels={**state.config.labels, **new})

    def _user(self, state: State, step: Instruction, stage: Stage) -> None:
        state.config = replace(state.config, user=self.fill(state, step, step.text).strip())

    def _shell(self, state: State, step: Instruction, stage: Stage) -> None:
        if not step.array:
            self.refuse(step.line, "SHELL wants a JSON list", 'Write SHELL ["/bin/bash", "-c"].')
        state.config = replace(state.config, shell=tuple(step.array or ()))

    def _cmd(self, state: State, step: Instruction, stage: Stage) -> None:
        state.config, state.own_cmd = replace(state.config, cmd=self._program(state, step)), True

    def _entrypoint(self, state: State, step: Instruction, stage: Stage) -> None:
        cmd = state.config.cmd if state.own_cmd else ()  # that of the base was meant for its entry point
        state.config = replace(state.config, entrypoint=self._program(state, step), cmd=cmd)

    def _program(self, state: State, step: Instruction) -> tuple[str, ...]:
        array = step.array
        return tuple(array) if array is not None else (*(state.config.shell or _SHELL), step.text)

    def _onbuild(self, state: State, step: Instruction, stage: Stage) -> None:
        self.refuse(step.line, "ONBUILD is not supported",
                    "Write the instruction into the Dockerfiles that use this one.", beyond=True)
