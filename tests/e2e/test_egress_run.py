"""A run whose agents have a network by policy: what they reach, and that every decision is in the record."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from kit import EXAMPLES, agent_row, run_json, woodshed

ASK = """
python3 - <<'END'
import urllib.request
for url in ("http://nowhere.test/there", "http://other.test/"):
    try:
        urllib.request.urlopen(url, timeout=20)
    except OSError as error:
        print(error)
END
"""


def test_decisions_of_the_policy_are_events_of_the_attempt(tmp_path: Path) -> None:
    """What an agent's network allowed and refused stands among the attempt's events, and the task is judged as ever."""
    policy = tmp_path / "policy.toml"
    policy.write_text('[[network.rules]]\nhost = "nowhere.test"\naddress = "127.0.0.1:9"\n')
    task = tmp_path / "copy-file"
    shutil.copytree(EXAMPLES / "first-steps" / "copy-file", task)
    with (task / "solution" / "solve.sh").open("a") as script:
        script.write(ASK)
    home = tmp_path / "home"
    row = agent_row(run_json(task, "--agent", "oracle", "--policy", policy, home=home), "oracle")
    assert (row["valid"], row["passed"]) == (1, 1)
    with closing(sqlite3.connect(home / "woodshed.db")) as store:
        rows = store.execute("SELECT data FROM events WHERE kind = 'policy'").fetchall()
    told = [json.loads(data) for (data,) in rows]
    found = {(decision["verdict"], decision["what"], decision["host"]) for decision in told}
    assert {("allowed", "dns", "nowhere.test"), ("failed", "http", "nowhere.test"),
            ("refused", "dns", "other.test")} <= found


def test_a_policy_whose_secret_is_missing_stops_the_run(tmp_path: Path) -> None:
    """The command ends with 2 before anything runs, and says what to set."""
    policy = tmp_path / "policy.toml"
    policy.write_text('[[network.rules]]\nhost = "a.test"\nupstream_tls = true\n'
                      'secrets = [{ name = "TOKEN", env = "WOODSHED_NO_SUCH_SECRET" }]\n')
    done = woodshed("run", EXAMPLES / "first-steps" / "copy-file", "--agent", "oracle", "--policy", policy,
                    home=tmp_path / "home")
    assert done.returncode == 2
    assert "WOODSHED_NO_SUCH_SECRET" in done.stderr
