"""Policies: directories are hidden, read or written as their rules say, and only what is allowed can be started."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from woodshed.errors import ImageFault, UsageError
from woodshed.interfaces import Sandbox, SandboxEngine
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.model.policy import CommandSet, DirectoryRule
from woodshed.sandbox.conformance.kit import SPEC, Check, needs, raises, shell

_TREE = SPEC.model_copy(update={"setup": (
    "mkdir -p kept/open veiled/open a/b; echo kept >kept/file; echo open >kept/open/file; echo veiled >veiled/file;"
    " echo seen >veiled/open/file; echo key >a/key; cp $(command -v ls) tool")})


def _rules(**access: str) -> SandboxPolicy:
    return SandboxPolicy.parse({"directories": [
        {"path": "/workspace/" + name.replace("_", "/"), "access": said} for name, said in access.items()]})


@asynccontextmanager
async def _under(engine: SandboxEngine, policy: SandboxPolicy, spec: EnvironmentSpec = SPEC) -> AsyncIterator[Sandbox]:
    sandbox = await engine.create(spec, policy)
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def _fails(sandbox: Sandbox, *commands: str) -> None:
    for command in commands:
        assert (await sandbox.exec(command)).exit_code != 0, command


@needs("directories")
async def what_is_read_cannot_be_changed(engine: SandboxEngine) -> None:
    """Nothing below a read path is written, made, removed, renamed or re-moded, by commands or us; beside it all is."""
    async with _under(engine, _rules(kept="read", a_key="read"), _TREE) as sandbox:
        assert await shell(sandbox, "cat kept/file kept/open/file a/key") == "kept\nopen\nkey\n"
        await _fails(sandbox, "echo x >kept/file", "touch kept/new", "rm kept/file", "mv kept/file elsewhere",
                     "chmod 777 kept/file", "mv kept other", "rm -rf kept/open", "echo x >>a/key", "rm a/key",
                     "mv a other", "mv /workspace /other", "ln -s /etc kept/link")
        await raises(OSError, sandbox.write("/workspace/kept/file", b"x"))
        await raises(OSError, sandbox.write("/workspace/kept/new/deep", b"x"))
        await shell(sandbox, "echo y >file; mkdir d; mv file d; touch a/other")
        assert await sandbox.read("/workspace/kept/file") == b"kept\n"


@needs("directories")
async def what_is_hidden_is_empty(engine: SandboxEngine) -> None:
    """A hidden directory has no entries and takes none, a hidden file no content; neither by commands nor by us."""
    async with _under(engine, _rules(veiled="hidden", a_key="hidden", not_there="hidden"), _TREE) as sandbox:
        assert await shell(sandbox, "ls -A veiled; cat kept/file") == "kept\n"
        assert (await sandbox.exec("cat a/key")).stdout == b""
        await _fails(sandbox, "cat veiled/file", "touch veiled/new", "mv veiled other", "rmdir veiled", "echo x >a/key",
                     "mv a other")
        assert await sandbox.list("/workspace/veiled") == []
        await raises(FileNotFoundError, sandbox.read("/workspace/veiled/file"))
        await raises(OSError, sandbox.write("/workspace/veiled/new", b"x"))


@needs("directories")
async def the_longest_rule_decides(engine: SandboxEngine) -> None:
    """Inside what is read or hidden a longer rule opens a place again, and that place has what it had."""
    policy = _rules(kept="read", kept_open="write", veiled="hidden", veiled_open="read", veiled_made="write")
    async with _under(engine, policy, _TREE) as sandbox:
        assert await shell(sandbox, "ls -A veiled; cat veiled/open/file") == "made\nopen\nseen\n"
        await shell(sandbox, "echo more >>kept/open/file; touch kept/open/new veiled/made/new")
        await _fails(sandbox, "touch kept/new", "touch veiled/open/new", "touch veiled/new", "mv kept/open x")
        await sandbox.write("/workspace/kept/open/ours", b"x")


@needs("directories")
async def a_root_that_is_read_leaves_what_is_opened(engine: SandboxEngine) -> None:
    """With '/' read, what a rule opens can be written and nothing else; devices and /dev/shm work on."""
    policy = SandboxPolicy(directories=(DirectoryRule(path="/", access="read"),
                                        DirectoryRule(path="/workspace", access="write")))
    async with _under(engine, policy, _TREE) as sandbox:
        await shell(sandbox, "echo x >new; mkdir d; mv new d/; echo y >/dev/null; echo z >/dev/shm/z; rm -r d")
        await _fails(sandbox, "touch /tmp/x", "touch /root/x", "touch /etc/x", "mkdir /new")


@needs("directories")
async def rules_that_contradict_the_world_are_refused(engine: SandboxEngine) -> None:
    """A hidden working directory is a usage error, a path to be read that is not there a fault; nothing is left."""
    await raises(UsageError, engine.create(SPEC, SandboxPolicy(
        directories=(DirectoryRule(path="/workspace", access="hidden"),))))
    fault = await raises(ImageFault, engine.create(SPEC, _rules(nowhere="read")))
    assert "/workspace/nowhere" in str(fault)


@needs("commands")
async def only_what_is_allowed_starts(engine: SandboxEngine) -> None:
    """Names and paths of an allow set run, with arguments and links as usual; every other program is refused: 126."""
    policy = SandboxPolicy(commands=CommandSet(allow=("cat", "/workspace/tool")))
    async with _under(engine, policy, _TREE) as sandbox:
        assert (await sandbox.exec(["cat", "kept/file"])).stdout == b"kept\n"
        assert b"kept" in (await sandbox.exec(["/workspace/tool"])).stdout
        for argv in (["ls"], ["/bin/sh", "-c", "true"], ["env", "cat", "kept/file"], ["/workspace/copy"]):
            await sandbox.write("/workspace/copy", await sandbox.read("/workspace/tool"), mode=0o755)
            result = await sandbox.exec(argv)
            assert result.exit_code == 126, (argv, result)
            assert result.stderr
        assert (await sandbox.exec("cat kept/file")).exit_code == 126, "a string needs a shell"
        await raises(OSError, sandbox.write("/workspace/tool", b"#!/bin/cat\n"))


@needs("commands")
async def what_is_not_there_cannot_be_allowed(engine: SandboxEngine) -> None:
    """An allowed command that the image lacks is a fault that names it."""
    policy = SandboxPolicy(commands=CommandSet(allow=("no-such-program",)))
    fault = await raises(ImageFault, engine.create(SPEC, policy))
    assert "no-such-program" in str(fault)


@needs("commands")
async def what_is_denied_is_out_of_sight(engine: SandboxEngine) -> None:
    """A denied command does not run under its name or path; all others do."""
    async with _under(engine, SandboxPolicy(commands=CommandSet(deny=("ls", "no-such-program"))), _TREE) as sandbox:
        assert await shell(sandbox, "cat kept/file") == "kept\n"
        await _fails(sandbox, "ls", "$(command -v cat | sed s/cat/ls/)", "ls /")
        assert (await sandbox.exec(["ls"])).exit_code in (126, 127)


@needs("directories", "snapshot", "fork")
async def a_snapshot_keeps_the_rules(engine: SandboxEngine) -> None:
    """After a snapshot, and in what is forked from it, every rule holds as before, and what is written is apart."""
    async with _under(engine, _rules(kept="read", kept_open="write", veiled="hidden"), _TREE) as sandbox:
        await shell(sandbox, "echo one >>kept/open/file; echo top >top")
        snapshot = await sandbox.snapshot()
        try:
            (child,) = await engine.fork(snapshot)
            await shell(sandbox, "echo two >>kept/open/file")
            try:
                await shell(child, "echo three >>kept/open/file")
                for box, last in ((sandbox, "two"), (child, "three")):
                    assert await shell(box, "cat top kept/open/file; ls -A veiled") == f"top\nopen\none\n{last}\n"
                    await _fails(box, "touch kept/new", "mv kept x", "touch veiled/new", "cat veiled/file")
            finally:
                await child.close()
        finally:
            await snapshot.release()


async def the_policy_has_the_last_word_on_the_environment(engine: SandboxEngine) -> None:
    """Its variables win over the spec's, what it drops is gone, and one exec may still set its own."""
    policy = SandboxPolicy(env={"ADDED": "1", "GREETING": "policy"}, env_drop=("GONE",))
    spec = EnvironmentSpec(env={"GREETING": "spec", "GONE": "x", "KEPT": "k"})
    async with _under(engine, policy, spec) as sandbox:
        told = 'echo "$ADDED $GREETING ${GONE-none} $KEPT"'
        assert await shell(sandbox, told) == "1 policy none k\n"
        assert (await sandbox.exec(told, env={"GONE": "back"})).stdout == b"1 policy back k\n"


CHECKS: tuple[Check, ...] = (
    what_is_read_cannot_be_changed, what_is_hidden_is_empty, the_longest_rule_decides,
    a_root_that_is_read_leaves_what_is_opened, rules_that_contradict_the_world_are_refused, only_what_is_allowed_starts,
    what_is_not_there_cannot_be_allowed, what_is_denied_is_out_of_sight,
    a_snapshot_keeps_the_rules, the_policy_has_the_last_word_on_the_environment,
)
