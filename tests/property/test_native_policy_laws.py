"""Any set of directory rules holds in a real sandbox as the longest matching rule says."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import get_args

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.model.policy import Access, DirectoryRule, access_of
from woodshed.sandbox.native.engine import NativeEngine

TOP = "/workspace/t"
NAMES = [names for depth in range(4) for names in itertools.product("ab", repeat=depth)]
PLACES = [TOP + "".join(f"/{name}" for name in names) for names in NAMES]
ALL = " ".join(PLACES)
SPEC = EnvironmentSpec(setup=f"mkdir -p {ALL}; for d in {ALL}; do echo kept >$d/file; done")
# Without a process for each look: what the shell does itself is enough.
LOOK = (f"for d in {ALL}; do r=- w=- x=; read -r x <$d/file; [ \"$x\" = kept ] && r=r; true >$d/new && w=w;"
        " echo $d $r$w; done 2>/dev/null; mv t u; ls -d u")
SHOWN = {"hidden": "--", "read": "r-", "write": "rw", None: "rw"}


def test_any_rules_hold_as_the_longest_match_says(shed_home: Path) -> None:
    """Each directory can be read and written exactly as its nearest rule says, and none above a rule is renamed."""
    with asyncio.Runner() as runner:
        engine = NativeEngine(shed_home)

        @given(rules=st.dictionaries(st.sampled_from(PLACES), st.sampled_from(get_args(Access)), max_size=7),
               noexec=st.booleans())
        @settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
        def hold(rules: dict[str, Access], noexec: bool) -> None:
            made = tuple(DirectoryRule(path=path, access=access) for path, access in rules.items())
            told = runner.run(_look(engine, SandboxPolicy(directories=made, noexec=noexec))).splitlines()
            expected = [f"{place} {SHOWN[access_of(place, made)]}" for place in PLACES]
            assert told[: len(PLACES)] == expected
            assert (told[len(PLACES):] == ["u"]) == (not rules)

        try:
            hold()
        finally:
            runner.run(engine.close())


async def _look(engine: NativeEngine, policy: SandboxPolicy) -> str:
    box = await engine.create(SPEC, policy)
    try:
        return (await box.exec(LOOK)).stdout.decode()
    finally:
        await box.close()
