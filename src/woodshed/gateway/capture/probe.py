"""Probing: what an endpoint really tells of tokens, found out by one short question before anything relies on it.

Pure but for the two ways to ask that it is given. How a call then asks, and reads its answer, is :class:`Capturing`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from woodshed.errors import ModelGarbled, ModelRefused
from woodshed.gateway.capture import SERVERS, kind, level, vocabulary
from woodshed.gateway.capture.raw import SERVERS_RAW
from woodshed.gateway.capture.server import Server, part
from woodshed.model.rollout import CaptureLevel
from woodshed.model.tokens import Tokens, flaws

Ask = Callable[[str, Mapping[str, Any] | None], Awaitable[Any]]
"""Asks the server for a path from its root, by POST of a body or, without one, by GET; the parsed JSON of its answer.

Raises whatever a failed call raises. No prompt goes this way: that is the choke point's alone.
"""
Complete = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""Sends the body of a completion by the choke point; the parsed JSON of its answer."""


@dataclass(frozen=True, slots=True)
class Capturing:
    """How one endpoint is asked for tokens. ``found`` is what it told when it was probed.

    ``vocabulary`` is how many ids its model has, where it tells that or whoever runs it said so.
    """

    name: str
    server: Server
    found: CaptureLevel
    vocabulary: int | None = None

    def body(self, body: Mapping[str, Any], said: Collection[str] = ()) -> dict[str, Any]:
        """The request's body, with what this server needs to be asked. What the caller asked itself is kept.

        But for its sampler, which is the neutral one, except in what is ``said`` (names of the agent's config).
        """
        neutral = {name: value for name, value in self.server.neutral.items() if name not in said}
        return {**self.server.fields, **body, **neutral}

    async def read(self, answer: Mapping[str, Any], ask: Ask) -> Tokens:
        """What an answer tells; the prompt's ids by a further question, where the server tells its text alone."""
        tokens = self.server.read(answer)
        if tokens.prompt is None and tokens.prompt_text is not None and self.server.tokenize and self.server.tokenized:
            path, body = self.server.tokenize(tokens.prompt_text)
            tokens = replace(tokens, prompt=self.server.tokenized(await ask(path, body)))
        return tokens


async def probe(
    ask: Ask, complete: Complete, model: str, *, server: str | None = None, raw: bool = False,
    ids: int | None = None,
) -> Capturing:
    """How the endpoint is to be asked, by a question of a single token. ``server`` is its name, where it is known.

    ``raw``: it is one of raw completions. ``ids`` is how many ids its model has, where that is known.

    A server that tells less than its kind is said to (an older version, a flag that is missing) has the level of what
    it told. Counts of its own that disagree with its ids, and ids beyond its vocabulary, make it text. Raises whatever
    these two raise.
    """
    models, servers = await _models(ask), SERVERS_RAW if raw else SERVERS
    name, ids = server or kind(models), ids or vocabulary(models, model)
    found = Capturing(name, servers[name], CaptureLevel.TEXT, ids)
    asked: dict[str, Any] = {"prompt": "A"} if raw else {"messages": [{"role": "user", "content": "Say A."}]}
    question = {"model": model, **asked, "max_tokens": 1, "temperature": 0, "stream": False}
    try:
        answer = await complete(found.body(question, said=("temperature",)))
    except ModelRefused:
        if server is not None or name == "plain":
            raise
        # An older version, that knows no such fields.
        found = Capturing("plain", servers["plain"], CaptureLevel.TEXT, ids)
        answer = await complete(found.body(question, said=("temperature",)))
    if not isinstance(answer, Mapping):
        return found
    tokens = await found.read(answer, ask)
    counts = {name: part(answer, "usage", name) for name in ("prompt_tokens", "completion_tokens")}
    if flaws(tokens, **{name: count for name, count in counts.items() if isinstance(count, int)}):
        return found
    return replace(found, found=level(tokens, ids))


async def _models(ask: Ask) -> Any:
    """The list of its models; None of one that has no such list."""
    try:
        return await ask("/v1/models", None)
    except (ModelRefused, ModelGarbled):
        return None
