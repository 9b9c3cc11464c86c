"""A SandboxPolicy becomes what the plan of a box carries; ``inside/rules.py`` makes mounts and Landlock of it."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from woodshed.errors import EnvironmentFault, ImageFault, Unsupported, UsageError
from woodshed.interfaces import Capability
from woodshed.model import SandboxPolicy
from woodshed.model.policy import access_of
from woodshed.sandbox.native import egress
from woodshed.sandbox.native.inside import programs, syscalls


def capabilities() -> frozenset[Capability]:
    """What of a policy can be held on this machine: directories by mounts, command sets by Landlock."""
    return frozenset({"directories", "commands"} if syscalls.landlock_abi() else {"directories"})


def check(policy: SandboxPolicy, workdir: str, engine: str = "native") -> None:
    """The policy can be held here, in a box with this working directory. Reads nothing of the image.

    Raises UsageError for a contradiction, Unsupported where an allow set meets a kernel without Landlock.
    """
    if policy.engine not in (None, engine):
        raise UsageError(f"the policy demands the engine '{policy.engine}', and this is '{engine}'", field="engine",
                         remedy="Make the sandbox with that one, or leave it out of the policy.")
    for name in policy.commands.allow or ():
        if programs.loads(name):
            raise UsageError(f"{name!r} is a loader, which runs any program", field="commands.allow",
                             remedy="Allow the programs themselves; each brings its loader along.")
    if workdir and policy.directories and access_of(posixpath.normpath(workdir), policy.directories) == "hidden":
        raise UsageError(f"the working directory {workdir} is hidden", field="directories",
                         remedy="Hide something else, or let a longer rule read or write the working directory.")
    if policy.commands.allow is not None and not syscalls.landlock_abi():
        raise Unsupported("commands.allow: this kernel has no Landlock, and nothing else enforces it. Boot with "
                          "lsm=landlock,… (Linux 5.13), or use commands.deny, which only hides files")


def fault(died: BaseException) -> EnvironmentFault:
    """What is raised where a box was not made: an ImageFault, which no retry mends, where the image is to blame."""
    reason = str(died).partition(f"{programs.Unenforceable.__name__}: ")[2]
    if reason:
        return ImageFault(f"the image cannot be held to the policy: {reason}")
    return EnvironmentFault(f"the sandbox could not be made: {died}")


def notes(policy: SandboxPolicy) -> tuple[str, ...]:
    """What the policy does not hold though it may look so, a sentence each."""
    told = [f"commands.allow: {name!r} is an interpreter: with it the set is advisory, for a script can do what the "
            "denied programs do; to start one of them is still refused"
            for name in policy.commands.allow or () if programs.interprets(name)]
    if policy.commands.allow is not None and not policy.writable_is_noexec:
        told.append("noexec = false: allowed programs load libraries that were written inside, so the allow set is "
                    "advisory")
    return (*told, *egress.notes(policy.network))


def environment(policy: SandboxPolicy, declared: Mapping[str, str]) -> Mapping[str, str]:
    """The variables of every command: ``declared`` by image and task, as the policy leaves them."""
    if not policy.env and not policy.env_drop:
        return declared
    return {name: value for name, value in declared.items() if name not in policy.env_drop} | policy.env


def shell(policy: SandboxPolicy, best: str) -> str:
    """What runs a command that is one string: the ``best`` of the image, or sh where an allow set has only that."""
    allow = policy.commands.allow or ()
    return "/bin/sh" if "sh" in allow and not {best, posixpath.basename(best)} & set(allow) else best


def rules(policy: SandboxPolicy, search: str) -> dict[str, Any] | None:
    """What the first process of a box is to enforce; None where the policy asks nothing of it.

    ``search`` is the PATH in which names of commands are looked up.
    """
    allow, deny = policy.commands.allow, policy.commands.deny
    noexec, unprivileged = policy.writable_is_noexec, policy.privileges == "none"
    if not (policy.directories or allow is not None or deny or noexec or unprivileged):
        return None
    return {
        "directories": [[rule.path, rule.access] for rule in policy.directories],
        "allow": None if allow is None else list(allow), "deny": list(deny), "path": search,
        "noexec": noexec, "sealed": noexec or allow is not None, "unprivileged": unprivileged,
    }
