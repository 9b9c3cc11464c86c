"""A run whose agents have a network by policy: what they reach, and that every decision is in the record."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from egressbox import SECRET
from kit import EXAMPLES, agent_row, woodshed
from upstreams import host

ASK = """
python3 - <<'END'
import os, urllib.request
for token in (os.environ["TOKEN"], "none"):
    ask = urllib.request.Request("http://api.test/v1?key=x", b"data", {"Authorization": "Bearer " + token})
    print(urllib.request.urlopen(ask, timeout=20).read().decode())
for url in ("http://nowhere.test/there", "http://other.test/"):
    try:
        urllib.request.urlopen(url, timeout=20)
    except OSError as error:
        print(error)
END
"""
POLICY = """
[[network.rules]]
host = "nowhere.test"
address = "127.0.0.1:9"

[[network.rules]]
host = "api.test"
address = "{0.address}"
ca_file = "{0.ca_file}"
upstream_tls = true
secrets = [{{ name = "TOKEN", env = "COMPANY_TOKEN" }}]
"""


async def test_a_runs_record_tells_every_decision_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an agent's network allowed, where a secret was put in, how many bytes went each way and what was refused is
    among the attempt's events, and the task is judged as ever; the secret, which its host heard and repeated, is in no
    file of the record and in nothing that was printed."""
    pytest.importorskip("cryptography", reason="cryptography is missing: pip install 'woodshed[intercept]'")
    monkeypatch.setenv("COMPANY_TOKEN", SECRET)
    task, home, policy = tmp_path / "copy-file", tmp_path / "home", tmp_path / "policy.toml"
    shutil.copytree(EXAMPLES / "first-steps" / "copy-file", task)
    with (task / "solution" / "solve.sh").open("a") as script:
        script.write(ASK)
    async with host(name="api.test", folder=tmp_path, body=lambda head: head) as api:
        policy.write_text(POLICY.format(api))
        done = await asyncio.to_thread(
            woodshed, "run", task, "--agent", "oracle", "--policy", policy, "--json", home=home)
    assert done.returncode == 0, done.stderr
    row = agent_row(json.loads(done.stdout.strip().splitlines()[-1]), "oracle")
    assert (row["valid"], row["passed"]) == (1, 1)
    assert [SECRET.encode() in head for head in api.heads] == [True, False]
    with closing(sqlite3.connect(home / "woodshed.db")) as store:
        rows = store.execute("SELECT data FROM events WHERE kind = 'policy'").fetchall()
    told = [json.loads(data) for (data,) in rows]
    found = {(decision["verdict"], decision["what"], decision["host"]) for decision in told}
    assert {("allowed", "dns", "nowhere.test"), ("failed", "http", "nowhere.test"),
            ("refused", "dns", "other.test")} <= found
    passed = [decision for decision in told if (decision["verdict"], decision["what"]) == ("allowed", "http")]
    assert [(decision["path"], decision.get("secrets")) for decision in passed] == [("/v1", ["TOKEN"]), ("/v1", None)]
    ended = [decision for decision in told if decision["verdict"] == "ended"]
    assert len(ended) == 2
    assert all(decision["sent_bytes"] > 100 < decision["received_bytes"] for decision in ended)
    assert SECRET not in done.stdout + done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()] == []


def test_a_policy_whose_secret_is_missing_stops_the_run(tmp_path: Path) -> None:
    """The command ends with 2 before anything runs, and says what to set."""
    policy = tmp_path / "policy.toml"
    policy.write_text('[[network.rules]]\nhost = "a.test"\nupstream_tls = true\n'
                      'secrets = [{ name = "TOKEN", env = "WOODSHED_NO_SUCH_SECRET" }]\n')
    done = woodshed("run", EXAMPLES / "first-steps" / "copy-file", "--agent", "oracle", "--policy", policy,
                    home=tmp_path / "home")
    assert done.returncode == 2
    assert "WOODSHED_NO_SUCH_SECRET" in done.stderr
