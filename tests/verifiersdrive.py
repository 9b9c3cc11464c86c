"""verifiers' own environment over a service, for a Python that has verifiers and this package: one whole attempt.

Arguments: URL, key, file for the JSON of what was seen. A scripted endpoint answers: first a call of a tool, then that
it is done.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.envs.single_agent.env import SingleAgentEnv, SingleAgentEnvConfig

from woodshed.trainers import verifiers_environment as ours

WORK = json.dumps({"command": "echo 'hello world' > hello.txt"})


class Scripted(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        done = any(one["role"] == "tool" for one in asked["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": "done" if done else None}
        if not done:
            message["tool_calls"] = [{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": WORK}}]
        body = json.dumps({
            "id": "x", "object": "chat.completion", "created": 1, "model": asked["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop" if done else "tool_calls"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return None


async def main() -> None:
    url, key, out = sys.argv[1:]
    os.environ["WOODSHED_SERVE_KEY"] = key
    module = types.ModuleType("woodshed_tasks")
    module.__dict__.update({name: getattr(ours, name) for name in ours.__all__}, __all__=ours.__all__)
    module.__spec__ = ours.__spec__
    sys.modules["woodshed_tasks"] = module
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["SCRIPTED_KEY"] = "none"
    env = SingleAgentEnv(SingleAgentEnvConfig.model_validate({
        "taskset": {"id": "woodshed-tasks", "names": ["write-file", "nothing"]},
        "agent": {"harness": {"id": "woodshed-tasks", "service": url}, "runtime": {"type": "subprocess"}}}))
    endpoint = EvalClientConfig(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key_var="SCRIPTED_KEY")
    async with env.serving():
        whole, broken = [await env.run_episode(task, ModelContext(model="tiny", client=endpoint))
                         for task in env.taskset]
    server.shutdown()
    [trace], [other] = whole.traces, broken.traces
    Path(out).write_text(json.dumps({
        "reward": trace.reward, "errors": [str(one) for one in [*whole.errors, *trace.errors]],
        "verdict": trace.info.get("woodshed"), "sampled": sum(node.sampled for node in trace.nodes),
        "broken": [str(one) for one in [*broken.errors, *other.errors]], "ok": [trace.ok, other.ok]}))


if __name__ == "__main__":
    asyncio.run(main())
