"""OpenEnv's own client over a service, for a Python that has openenv: a whole attempt, mistakes, a dropped socket.

Arguments: URL, key, file for the JSON of what was seen, and one of a training trace to be read.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from openenv import GenericEnvClient
from openenv.core.harness.training import TrainingTrace

TASK = "write-file"


async def main() -> None:
    url, key, out, trace = sys.argv[1:]
    seen: dict[str, Any] = {}

    def client(**more: Any) -> Any:
        return GenericEnvClient(base_url=f"{url}/openenv", headers={"Authorization": f"Bearer {key}"}, **more)

    async with client() as env:
        reset = await env.reset(task=TASK, seed=1, episode_id="ep1")
        seen["instruction"] = reset.observation["instruction"]
        seen["begun"] = [reset.reward, reset.done]
        step = await env.step({"tool": "bash", "arguments": {"command": "echo 'hello world' > hello.txt"}})
        seen["step"] = [step.observation["exit_code"], step.reward, step.done]
        seen["state"] = await env.state()
        end = await env.step({"end": True})
        seen["end"] = [end.reward, end.done]
        seen["errors"] = []
        for wrong in (env.step({"tool": "bash"}), env.reset(task="nothing"), env.step({"tool": 3})):
            try:
                await wrong
            except RuntimeError as error:
                seen["errors"].append(str(error))
    async with client() as one, client() as another:
        await one.reset(task=TASK)
        try:
            await another.reset(task=TASK)
        except RuntimeError as error:
            seen["errors"].append(str(error))
        one._ws.transport.abort()
        seen["freed"] = (await another.reset(task=TASK, wait_s=60)).done
    with client().sync() as env:
        env.reset(task=TASK, wait_s=60)
        seen["sync"] = env.step({"end": True}).reward
    seen["turns"] = len(TrainingTrace.model_validate_json(Path(trace).read_text()).turns)
    Path(out).write_text(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main())
