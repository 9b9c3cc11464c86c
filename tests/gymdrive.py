"""Gymnasium's own checker, and an attempt, over a service, for a Python that has gymnasium and this package.

Arguments: URL, key, file for the JSON of what was seen.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

from gymnasium.utils.env_checker import check_env

from woodshed.trainers.client import Client
from woodshed.trainers.gymnasium_environment import Attempts


def main() -> None:
    url, key, out = sys.argv[1:]
    env = Attempts(Client(url, key), ["write-file"])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        check_env(env, skip_render_check=True, skip_close_check=True)
    instruction, info = env.reset(seed=1, options={"task": "write-file"})
    first = env.step("echo 'hello world' > hello.txt")
    other = env.step(json.dumps({"tool": "read_file", "arguments": {"path": "hello.txt"}}))
    last = env.step("")
    env.close()
    Path(out).write_text(json.dumps({
        "instruction": instruction, "tools": [tool["name"] for tool in info["tools"]], "first": first[1:4],
        "read": other[0], "last": last[1:4], "valid": last[4]["valid"], "told": [str(one.message) for one in told]}))


if __name__ == "__main__":
    main()
