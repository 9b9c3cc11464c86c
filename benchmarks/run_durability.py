"""What fine durability costs beside coarse, on this machine; figures go to benchmarks/results/durability.json.

usage: python benchmarks/run_durability.py [--turns N] [--rounds N] [--seed N]
       python benchmarks/run_durability.py --docs       only write the figures into docs/durability.md again

The same attempts in turn: a scripted model over HTTP in a process of its own, our loop, one shell command a turn in a
native sandbox, an SQLite store. Rounds alternate, so that a machine whose speed drifts harms both alike; each ratio is
the median of the rounds' ratios. CPU is this process's own. Checkpoints are made of a sandbox that changed a thousand
files of ten kilobytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from woodshed.model import Agent, AgentLimits, CheckpointRule, Durability, EventKind, ModelSpec
from woodshed.services import measured, runs
from woodshed.services.home import Home, opened
from woodshed.services.runs import Tally

ROOT = Path(__file__).parents[1]
SOURCE = "durability.json"
RESULT = ROOT / "benchmarks" / "results" / SOURCE
PAGE = ROOT / "docs" / "durability.md"
TASK = ROOT / "examples" / "tasks" / "first-steps" / "write-file"
FILES, SIZE = 1000, 10_000
_MAKE = f"mkdir -p t && cd t && for i in $(seq {FILES}); do head -c {SIZE} /dev/urandom >f$i; done"


def main() -> int:
    """Measure, write the result, and renew the document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (("turns", 60), ("rounds", 5), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--docs", action="store_true")
    asked = parser.parse_args()
    if not asked.docs:
        measured.publish(measure(asked.turns, asked.rounds, asked.seed), RESULT)
    if not PAGE.exists():
        return 0
    block = re.compile(rf"(?<=<!-- figures {re.escape(SOURCE)} -->\n).*?(?=<!-- end -->)", re.DOTALL)
    PAGE.write_text(block.sub(lambda _: "\n".join(lines(json.loads(RESULT.read_text()))), PAGE.read_text()))
    return 0


def measure(turns: int, rounds: int, seed: int) -> dict[str, Any]:
    """The figures, and the samples they come from."""
    context = get_context("spawn")
    ports: Queue[int] = context.Queue()
    server = context.Process(target=_serve, args=(ports, turns), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ports.get()}/v1"
    samples: list[dict[str, Any]] = []
    try:
        with tempfile.TemporaryDirectory(prefix="woodshed-bench-") as folder, opened(Path(folder)) as home:
            _attempt(home, url, Durability.COARSE, seed)  # warm: layers, connections, imports
            for number in range(rounds):
                samples.append({how.value: _attempt(home, url, how, seed) for how in Durability})
                sys.stderr.write(f"round {number + 1} of {rounds}\n")
            checkpoints, resumed_s = asyncio.run(_resumed(home, url, turns, seed))
    finally:
        server.terminate()
    told: dict[str, Any] = {"benchmark": "durability", **measured.stamp(seed), "turns": turns, "rounds": rounds}
    for what in ("cpu", "wall"):
        for how in Durability:
            told[f"{how.value}_{what}_ms"] = round(
                1000 * statistics.median(one[how.value][what] for one in samples) / (turns + 1), 3)
        told[f"{what}_ratio"] = round(statistics.median(
            one["fine"][what] / one["coarse"][what] for one in samples), 3)
    told["load"] = round(os.getloadavg()[1], 1)
    told["busy"] = told["load"] > (os.cpu_count() or 1)
    told["checkpoint_ms"] = round(1000 * statistics.median(one["seconds"] for one in checkpoints), 1)
    told["frozen_ms"] = round(1000 * statistics.median(one["frozen_s"] for one in checkpoints), 1)
    told["checkpoint_files"], told["checkpoint_bytes"] = checkpoints[-1]["files"], checkpoints[-1]["bytes"]
    return {**told, "resumed_ms": round(1000 * resumed_s, 1), "samples": samples}


def _planned(url: str, how: Durability, seed: int, rule: CheckpointRule, name: str) -> Any:
    agent = Agent(name=name, harness="loop", model=ModelSpec(name=name, base_url=url), durability=how, checkpoint=rule,
                  limits=AgentLimits(turns=10_000, tool_calls=10_000))
    return runs.plan([TASK], [agent], attempts=1, concurrency=1, seed=seed, engine="native")


def _attempt(home: Home, url: str, how: Durability, seed: int) -> dict[str, float]:
    """Seconds of acting in one attempt. No checkpoints: they are measured apart."""
    cpu, started = time.process_time(), time.perf_counter()
    spec, tasks = _planned(url, how, seed, CheckpointRule(turns=10**6, minutes=None), "echo")
    run = asyncio.run(runs.start(home, spec, tasks, _ignore))
    whole, spent = time.perf_counter() - started, time.process_time() - cpu
    [attempt] = home.store.attempts(run.id)
    assert attempt.outcome is not None
    act = attempt.outcome.stages_s["act"]
    [stage] = [event.data for event in home.store.events(attempt.id)
               if event.kind is EventKind.STAGE and event.data["stage"] == "act"]
    return {"wall": act, "cpu": stage["cpu_s"], "whole": round(whole, 3), "whole_cpu": round(spent, 3)}


async def _resumed(home: Home, url: str, turns: int, seed: int) -> tuple[list[dict[str, Any]], float]:
    """Checkpoints of a sandbox with many files, and seconds until it was whole again from the last one."""
    spec, tasks = _planned(url, Durability.FINE, seed, CheckpointRule(turns=5, minutes=None), "files")
    running = asyncio.create_task(runs.start(home, spec, tasks, _ignore))
    while True:
        await asyncio.sleep(0.02)
        [attempt] = home.store.attempts(home.store.run("last").id)
        kept = [event.data for event in home.store.events(attempt.id) if event.kind is EventKind.CHECKPOINT]
        if len(kept) >= min(6, turns // 5):
            break
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await runs.resume(home, "last", _ignore)
    events = home.store.events(attempt.id, 2)
    first, live = (next(event.at for event in events if event.kind is EventKind.RESUME and event.data["state"] == state)
                   for state in ("begun", "live"))
    return kept, (live - first).total_seconds()


def _serve(ports: Queue[int], turns: int) -> None:
    """A model that says one command a turn, by what the conversation holds."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            turn = 1 + sum(message["role"] == "assistant" for message in body["messages"])
            command = _MAKE if body["model"] == "files" and turn == 1 else f"echo {turn} >>log; tail -n 3 log"
            name, arguments = ("bash", {"command": f"{command}; echo hello world >hello.txt"})
            if turn > turns:
                name, arguments = ("finish", {})
            call = {"id": "x", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            content = json.dumps({"choices": [{"message": {"role": "assistant", "content": "", "tool_calls": [call]}}],
                                  "usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the library's name)
            """Say nothing."""

    class Server(HTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Who asked was interrupted, as it was meant to be."""

    server = Server(("127.0.0.1", 0), Handler)
    ports.put(server.server_address[1])
    server.serve_forever()


def _ignore(tally: Tally) -> None:
    """Nobody looks."""


def lines(figures: Mapping[str, Any]) -> list[str]:
    """The table, each figure with its key."""
    machine = figures["machine"]

    def figure(key: str, text: str) -> str:
        return f"{text} <!-- {SOURCE} {key} -->"

    told = ["", figure("cpu_ratio", f"- a turn takes {figures['cpu_ratio']:.2f} × the CPU of our process"),
            figure("fine_cpu_ms", f"  - fine: {figures['fine_cpu_ms']:.1f} ms"),
            figure("coarse_cpu_ms", f"  - coarse: {figures['coarse_cpu_ms']:.1f} ms"),
            figure("checkpoint_ms", f"- a checkpoint of {figures['checkpoint_files']} changed files, "
                                    f"{figures['checkpoint_bytes'] / 1e6:.0f} MB: {figures['checkpoint_ms']:.1f} ms"),
            figure("frozen_ms", f"  - of these the sandbox stands still for {figures['frozen_ms']:.1f} ms"),
            figure("resumed_ms", f"- from it, the same sandbox was whole again after {figures['resumed_ms']:.1f} ms")]
    if figures["busy"]:
        told += ["", "Taken on a busy machine: the CPU is the sturdier figure, and elsewhere times are shorter."]
    where = f"{machine['cores']} cores, kernel {machine['kernel']}, Python {machine['python']}"
    what = f"medians of {figures['rounds']} rounds of {figures['turns']} turns"
    return [*told, "", f"Commit {figures['commit']}, {figures['at'][:10]}, {where}; {what}.", "", ""]


if __name__ == "__main__":
    sys.exit(main())
