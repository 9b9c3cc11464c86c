"""Policies before anything runs: what is a contradiction, what is compiled, and what files a command needs."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.cli import sandbox
from woodshed.errors import Unsupported, UsageError
from woodshed.model import Limits, SandboxPolicy
from woodshed.model.policy import CommandSet, DirectoryRule, access_of
from woodshed.sandbox.native import policy as policies
from woodshed.sandbox.native.inside import confine, landlock, programs, rules, syscalls
from woodshed.services.boxes import load_policy


def _rule(path: str, access: str = "read") -> dict[str, str]:
    return {"path": path, "access": access}


WRONG: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"directories": [_rule("/a"), _rule("/a", "write")]}, "directories", "both read and write"),
    ({"directories": [_rule("a/b")]}, "directories.0.path", "not absolute"),
    ({"directories": [_rule("/a"), _rule("/b/")]}, "directories.1.path", "not normal"),
    ({"directories": [_rule("/a/../b")]}, "directories.0.path", "not normal"),
    ({"directories": [_rule("//a")]}, "directories.0.path", "not normal"),
    ({"directories": [_rule("/a\0b")]}, "directories.0.path", "not normal"),
    ({"directories": [_rule("/proc/sys")]}, "directories.0.path", "no rule may touch"),
    ({"directories": [_rule("/dev")]}, "directories.0.path", "no rule may touch"),
    ({"directories": [_rule("/sys/kernel", "hidden")]}, "directories.0.path", "no rule may touch"),
    ({"directories": [_rule("/", "hidden")]}, "directories.0.access", "cannot be hidden"),
    ({"directories": [_rule("/a", "exec")]}, "directories.0.access", "'hidden', 'read' or 'write'"),
    ({"directories": [{"path": "/a"}]}, "directories.0.access", "required"),
    ({"commands": {"allow": ["a"], "deny": ["b"]}}, "commands.deny", "allow is given too"),
    ({"commands": {"allow": ["bin/a"]}}, "commands.allow", "not absolute"),
    ({"commands": {"deny": [""]}}, "commands.deny", "no program's name"),
    ({"commands": {"allow": ["a", "a"]}}, "commands.allow", "given twice"),
    ({"commands": {"alow": ["a"]}}, "commands.alow", "Did you mean 'allow'"),
    ({"commands": {"allow": ["/a/b"]}, "directories": [_rule("/a", "hidden")]}, "commands", "of directories hides it"),
    ({"env": {"A=B": "x"}}, "env", "no variable's name"),
    ({"env": {"A": "x\0"}}, "env", "holds a NUL"),
    ({"env": {"A": "x"}, "env_drop": ["A"]}, "env_drop", "set by env too"),
    ({"limits": {"memory_mb": 0}}, "limits.memory_mb", "greater than 0"),
    ({"limits": {"open_files": 2}}, "limits.open_files", "at least 64"),
    ({"limits": {"cpus": float("nan")}}, "limits.cpus", "finite"),
    ({"privileges": "all"}, "privileges", "'default' or 'none'"),
)  # fmt: skip


@pytest.mark.parametrize(("declared", "field", "said"), WRONG, ids=lambda it: it if isinstance(it, str) else "")
def test_a_contradiction_is_an_error_at_load(declared: dict[str, Any], field: str, said: str) -> None:
    """It names the file, the field and what is wrong with it, before anything runs."""
    with pytest.raises(UsageError) as caught:
        SandboxPolicy.parse(declared, file="policy.toml")
    assert said in str(caught.value)
    assert f"policy.toml: {field}:" in str(caught.value)


PATHS = st.lists(st.sampled_from(["a", "b", "ab", "c"]), max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(paths=st.dictionaries(PATHS, st.sampled_from(["read", "write", "hidden"]), max_size=8), path=PATHS)
def test_the_longest_matching_rule_decides(paths: dict[str, Any], path: str) -> None:
    """What is said of a path is what its nearest ancestor with a rule says; names that begin alike do not count."""
    paths.pop("/", None)
    expected, at = None, path
    while expected is None and at != "/":
        expected, at = paths.get(at), posixpath.dirname(at)
    made = tuple(DirectoryRule(path=known, access=access) for known, access in paths.items())
    assert access_of(path, made) == expected
    assert (paths.get(rules._longest(path, paths)) if paths else None) == expected


@given(paths=st.dictionaries(PATHS, st.sampled_from(["read", "write", "hidden"]), min_size=1, max_size=6))
def test_a_policy_survives_its_own_json(paths: dict[str, Any]) -> None:
    """What is written down of a policy is read back as the same."""
    paths.pop("/", None)
    policy = SandboxPolicy.parse({"directories": [_rule(path, access) for path, access in paths.items()],
                                  "commands": {"deny": ["a"]}, "env": {"A": "b"}, "noexec": True})
    assert SandboxPolicy.parse(policy.to_json()) == policy


def test_a_policy_that_asks_nothing_costs_nothing() -> None:
    """Limits and variables alone ask nothing of a box's first process, and the declared variables stay as they are."""
    declared = {"A": "1"}
    assert policies.rules(SandboxPolicy(), "/bin") is None
    assert policies.rules(SandboxPolicy(env={"X": "y"}, env_drop=("A",)), "/bin") is None
    assert policies.environment(SandboxPolicy(), declared) is declared
    assert policies.environment(SandboxPolicy(env={"X": "y"}, env_drop=("A",)), declared) == {"X": "y"}


def test_an_allow_set_seals_and_makes_writable_places_noexec() -> None:
    """noexec follows an allow set unless it is said otherwise, and then load tells what is lost."""
    allow = CommandSet(allow=("cat",))
    given, open_ = SandboxPolicy(commands=allow), SandboxPolicy(commands=allow, noexec=False)
    compiled = policies.rules(given, "/bin")
    assert compiled is not None
    assert (compiled["noexec"], compiled["sealed"], compiled["unprivileged"]) == (True, True, False)
    assert (policies.rules(open_, "/bin") or {})["sealed"]
    assert policies.notes(given) == ()
    assert "advisory" in policies.notes(open_)[0]
    assert SandboxPolicy(noexec=True).writable_is_noexec
    assert not SandboxPolicy().writable_is_noexec


@pytest.mark.parametrize("name", ["sh", "bash", "python3", "python3.11", "/usr/bin/perl5.36", "mawk", "Rscript"])
def test_an_interpreter_makes_an_allow_set_advisory(name: str) -> None:
    """Load says so, by name."""
    told = policies.notes(SandboxPolicy(commands=CommandSet(allow=("cat", name))))
    assert len(told) == 1
    assert repr(name) in told[0]


@pytest.mark.parametrize("name", ["cat", "ls", "env", "xargs", "find", "grep", "git", "nodeenv", "shasum", "pythonic"])
def test_a_program_that_only_starts_others_does_not(name: str) -> None:
    """What env, xargs or find start is started by the kernel, which asks the set."""
    assert policies.notes(SandboxPolicy(commands=CommandSet(allow=(name,)))) == ()


def test_loaders_and_hidden_working_directories_are_refused() -> None:
    """Before anything runs, with the remedy; a longer rule may show the working directory again."""
    for name in ("/lib64/ld-linux-x86-64.so.2", "ld.so", "ld-musl-x86_64.so.1"):
        with pytest.raises(UsageError, match="loader"):
            policies.check(SandboxPolicy(commands=CommandSet(allow=(name,))), "/workspace")
    hidden = DirectoryRule(path="/site", access="hidden")
    with pytest.raises(UsageError, match="working directory"):
        policies.check(SandboxPolicy(directories=(hidden,)), "/site/deep")
    policies.check(SandboxPolicy(directories=(hidden, DirectoryRule(path="/site/deep", access="write"))), "/site/deep")


def test_an_allow_set_without_landlock_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never silently weaker: where the kernel cannot enforce it nothing is made, and a deny set still works."""
    monkeypatch.setattr(syscalls, "landlock_abi", lambda: 0)
    assert policies.capabilities() == {"directories"}
    with pytest.raises(Unsupported, match="Landlock"):
        policies.check(SandboxPolicy(commands=CommandSet(allow=("cat",))), "/workspace")
    policies.check(SandboxPolicy(commands=CommandSet(deny=("cat",))), "/workspace")


def test_a_string_runs_in_sh_where_only_that_is_allowed() -> None:
    """An allow set with sh but without the image's best shell makes sh run strings; otherwise the best does."""

    def chosen(*allow: str) -> str:
        return policies.shell(SandboxPolicy(commands=CommandSet(allow=allow or None)), "/bin/bash")

    assert chosen("sh", "cat") == "/bin/sh"
    assert chosen() == chosen("bash", "sh") == chosen("/bin/bash", "sh") == chosen("cat") == "/bin/bash"


# -- programs ----------------------------------------------------------------------------------------------------------


def _loader() -> str:
    with Path("/proc/self/exe").open("rb") as file:
        found = programs.loader_of(file.fileno())
    if found is None:
        pytest.skip("this Python is static: run the tests with one that is not")
    return str(Path(found).resolve())


def test_a_guarded_loader_is_the_loader_but_for_one_segment() -> None:
    """The copy differs in one program header, and in two bytes at its end that name '/' as a loader of its own."""
    before, after = Path(_loader()).read_bytes(), programs.guarded(_loader())
    assert after.endswith(b"/\0")
    assert len(after) == len(before) + 2
    changed = [at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new]
    assert max(changed) - min(changed) < 56


@given(content=st.one_of(
    st.binary(max_size=200), st.binary(max_size=300).map(lambda rest: b"\x7fELF\x02\x01\x01" + rest),
    st.binary(max_size=200).map(lambda rest: b"\x7fELF\x02\x01" + bytes(26) + b"\x40" + bytes(7) + bytes(14)
                                + b"\x38\0\x02\0" + bytes(6) + rest),
    st.binary(max_size=200).map(lambda rest: b"#!" + rest)))
def test_no_file_of_an_image_crashes_us(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Whatever a program's file holds, it is understood or refused; nothing is read or made beyond it."""
    path = tmp_path_factory.mktemp("image") / "program"
    path.write_bytes(content)
    path.chmod(0o755)
    with suppress(programs.Unenforceable, OSError, OverflowError, ValueError):
        assert str(path) in programs.Allowed([str(path)], "").files
    with suppress(programs.Unenforceable, OSError, OverflowError, ValueError):
        assert len(programs.guarded(str(path))) == len(content) + 2


def test_a_name_means_every_file_of_that_name_in_the_path(tmp_path: Path) -> None:
    """Links are resolved, what is no program is left out, relative and missing folders are passed over."""
    one, two, real = tmp_path / "one", tmp_path / "two", tmp_path / "real"
    for folder in (one, two, real):
        folder.mkdir()
    (real / "tool-1.2").write_text("")
    (real / "tool-1.2").chmod(0o755)
    (one / "tool").symlink_to(real / "tool-1.2")
    (two / "tool").write_text("no program")
    search = f"{one}:{two}:relative:/no/such/folder"
    assert programs.named("tool", search) == [str(real / "tool-1.2")]
    assert programs.named(str(two / "tool"), search) == []
    with pytest.raises(programs.Unenforceable, match="'other' is no program"):
        programs.Allowed(["other"], search)


def test_one_file_of_many_commands_is_told(tmp_path: Path) -> None:
    """Where an allowed name is busybox, all its commands are allowed, and the notes say so."""
    (tmp_path / "busybox").write_bytes(b"")
    (tmp_path / "busybox").chmod(0o755)
    (tmp_path / "ls").symlink_to("busybox")
    assert "many commands" in programs.Allowed(["ls"], str(tmp_path)).notes[0]


def test_a_script_needs_its_interpreters(tmp_path: Path) -> None:
    """Of env the program it looks up, too; an endless chain of scripts ends."""
    for name, content in (("sh2", b""), ("env", b""), ("s", b"#!%b/env -S sh2 -x\n" % bytes(tmp_path)),
                          ("loop", b"#!%b/loop\n" % bytes(tmp_path))):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o755)
    allowed = programs.Allowed(["s"], str(tmp_path))
    assert allowed.files == {str(tmp_path / name) for name in ("s", "env", "sh2")}
    assert len(allowed.notes) == 2
    assert programs.Allowed(["loop"], str(tmp_path)).files == {str(tmp_path / "loop")}


# -- places ------------------------------------------------------------------------------------------------------------


def test_writable_directories_above_a_rule_are_pinned(tmp_path: Path) -> None:
    """Each ancestor that may be written becomes a mount of its own; those that a rule closes need not."""
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    place = str(tmp_path / "a" / "b")
    pins = rules._pins({place: "read"})
    assert str(tmp_path / "a") in pins
    assert place not in pins
    assert rules._pins({str(tmp_path.parents[0]): "read", place: "write"}).keys().isdisjoint(
        {str(tmp_path), str(tmp_path / "a")})


def test_the_sealing_filter_knows_both_machines() -> None:
    """It is small, and built for x86-64 and aarch64."""
    for machine in ("x86_64", "aarch64"):
        assert 4 <= len(confine.sealing_program(machine)) // 8 < 10


# -- Landlock ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not syscalls.landlock_abi(), reason="this kernel has no Landlock: boot with lsm=landlock,…")
@pytest.mark.parametrize("abi", range(1, 8))
def test_a_ruleset_asks_no_more_than_its_version_knows(abi: int, tmp_path: Path) -> None:
    """As on an older kernel: what was handled is gone, what was granted stays, and rename works from version 2."""
    if abi > syscalls.landlock_abi():
        pytest.skip(f"this kernel's Landlock is of version {syscalls.landlock_abi()}")
    for name in ("open", "closed"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "file").write_text("x")

    def attempts() -> list[bool]:
        return [_works(lambda: (tmp_path / "open" / "new").write_text("x")),
                _works(lambda: (tmp_path / "closed" / "file").write_text("x")),
                _works(lambda: (tmp_path / "closed" / "new").mkdir()),
                _works(lambda: (tmp_path / "open" / "file").rename(tmp_path / "open" / "deep" / "moved")),
                _works(lambda: os.execv("/bin/false", ["false"]))]

    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(syscalls, "landlock_abi", lambda: abi)
                made = landlock.Ruleset(landlock.WRITING | landlock.EXECUTE)
                made.grant(landlock.REFER, ["/"])
                made.grant(landlock.WRITING, [str(tmp_path / "open"), "/dev/null"])
                syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
                made.restrict()
                os.write(writer, repr(attempts()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:  # noqa: PTH123 (a descriptor)
        told = file.read().decode()
    os.waitpid(pid, 0)
    assert told == repr([True, False, False, abi >= 2, False])


def _works(doing: Callable[[], object]) -> bool:
    try:
        doing()
    except OSError:
        return False
    return True


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_policy_is_read_from_toml(tmp_path: Path) -> None:
    """Everything in it counts; what cannot be read, is no TOML, or too large is a usage error with the file's name."""
    file = tmp_path / "policy.toml"
    file.write_text('privileges = "none"\n[[directories]]\npath = "/a"\naccess = "read"\n[commands]\nallow = ["cat"]\n')
    policy = load_policy(file)
    assert (policy.privileges, policy.directories[0].path, policy.commands.allow) == ("none", "/a", ("cat",))
    for content in (b"a = [", b"\xff", b"x" * 1_000_001, b"a = " + b"[" * 100_000):
        file.write_bytes(content)
        with pytest.raises(UsageError, match=r"policy\.toml"):
            load_policy(file)
    with pytest.raises(UsageError, match="No such file"):
        load_policy(tmp_path / "missing.toml")


def test_options_go_over_a_files_limits(tmp_path: Path) -> None:
    """What the command line bounds replaces the file's bound, and nothing else of it."""
    file = tmp_path / "policy.toml"
    file.write_text("[limits]\nmemory_mb = 1000\npids = 7\n")
    read = sandbox._policy(file, Limits(memory_mb=500))
    assert read is not None
    assert (read.limits.memory_mb, read.limits.pids) == (500, 7)
    untouched = sandbox._policy(file, Limits())
    assert untouched is not None
    assert untouched.limits.memory_mb == 1000
    assert sandbox._policy(None, Limits(memory_mb=500)) is None
