"""Which Python a sandbox uses, and which installations are never bound into one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from woodshed.errors import UsageError
from woodshed.sandbox.images.python import Interpreter, find, objection, probe


def installation(base: Path, version: tuple[int, int, int] = (3, 12, 1)) -> Interpreter:
    """A folder that looks like an installation of Python."""
    short = f"{version[0]}.{version[1]}"
    (base / "bin").mkdir(parents=True)
    (base / "lib" / f"python{short}").mkdir(parents=True)
    (base / "lib" / f"python{short}" / "os.py").write_text("")
    exe = base / "bin" / f"python{short}"
    exe.write_text("")
    exe.chmod(0o755)
    for path in (base, *base.rglob("*")):
        path.chmod(0o755)
    return Interpreter(base, exe, version, "tag")




def test_the_running_python_says_where_it_is() -> None:
    """A probe names the base installation and version, also when asked through a virtual environment."""
    found = probe(Path(sys.executable))
    assert found.base == Path(os.path.realpath(sys.base_prefix))
    assert found.version == sys.version_info[:3]
    assert found.exe.is_file()
    assert found.short in found.exe.name
    assert sys.implementation.cache_tag in found.tag


def test_a_python_is_found_without_any_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The running one, or the system's where the running one must not be bound."""
    monkeypatch.delenv("WOODSHED_PYTHON", raising=False)
    found = find(tmp_path)
    assert objection(found, tmp_path) is None
    assert found.base in (Path(os.path.realpath(sys.base_prefix)), Path("/usr"))


def test_a_base_that_holds_the_home_or_our_state_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Binding it would show more than an installation: the user's files, or every layer."""
    good = Interpreter(Path("/srv/python"), Path("/srv/python/bin/python3.12"), (3, 12, 0), "tag")
    monkeypatch.setenv("HOME", "/srv/python/me")
    assert "holds" in (objection(good, tmp_path) or "")
    monkeypatch.setenv("HOME", "/home/me")
    assert "holds" in (objection(good, Path("/srv/python/state")) or "")
    root = Interpreter(Path("/"), Path("/bin/python3.12"), (3, 12, 0), "tag")
    assert "holds" in (objection(root, tmp_path) or "")


@pytest.mark.parametrize("place", ["/tmp/py", "/run/py", "/dev/shm/py", "/proc/1/root", "/workspace/venv"])
def test_a_base_where_a_sandbox_mounts_its_own_is_refused(place: str, tmp_path: Path) -> None:
    """It would be hidden, or hide what the sandbox needs."""
    found = Interpreter(Path(place), Path(place) / "bin/python3.12", (3, 12, 0), "tag")
    assert "mounts" in (objection(found, tmp_path) or "")


def test_the_systems_python_needs_nothing_bound(tmp_path: Path) -> None:
    """A base below /usr is there already."""
    found = Interpreter(Path("/usr"), Path("/usr/bin/python3.11"), (3, 11, 2), "tag")
    assert not found.bound
    assert objection(found, tmp_path) is None


def test_an_old_python_is_refused(tmp_path: Path) -> None:
    """The test tools need 3.10."""
    found = Interpreter(Path("/usr"), Path("/usr/bin/python3.9"), (3, 9, 2), "tag")
    assert "older than 3.10" in (objection(found, tmp_path) or "")


def test_what_others_cannot_read_is_refused_as_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox of root's is nobody special on the host: a private installation would not start in it."""
    monkeypatch.setattr("woodshed.sandbox.images.python._MOUNTED", ())  # tests live below /tmp
    found = installation(tmp_path / "python")
    assert objection(found, tmp_path / "home") is None
    (tmp_path / "python/lib").chmod(0o750)
    why = objection(found, tmp_path / "home")
    assert why is None if os.geteuid() else "not readable" in (why or "")
    (tmp_path / "python/lib").chmod(0o755)
    (tmp_path / "python/lib/python3.12/os.py").unlink()
    assert "not readable" in (objection(found, tmp_path / "home") or "")


def test_an_executable_outside_its_base_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the base is bound, so what it links to elsewhere would be missing."""
    monkeypatch.setattr("woodshed.sandbox.images.python._MOUNTED", ())  # tests live below /tmp
    good = installation(tmp_path / "python")
    found = Interpreter(good.base, tmp_path / "elsewhere/python3.12", good.version, "tag")
    assert "outside its base" in (objection(found, tmp_path / "home") or "")


@pytest.mark.parametrize("chosen", ["/nowhere/python", "/bin/false", "/bin/echo"])
def test_a_chosen_python_that_does_not_run_is_named(
    chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the user chose is never silently replaced."""
    monkeypatch.setenv("WOODSHED_PYTHON", chosen)
    with pytest.raises(UsageError, match="WOODSHED_PYTHON") as caught:
        find(tmp_path)
    assert caught.value.remedy
