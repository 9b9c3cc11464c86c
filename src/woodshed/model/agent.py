"""Agent: config only. Harness, model, limits; the programs they name live elsewhere."""

from __future__ import annotations

from typing import Literal, Self, get_args

from pydantic import Field

from woodshed.model.durability import CheckpointRule, Durability
from woodshed.model.network import NetworkPolicy
from woodshed.model.policy import Limits, SandboxPolicy
from woodshed.model.record import Record
from woodshed.model.rollout import CaptureLevel

Capture = Literal["off", "auto", "vllm", "sglang", "llama.cpp", "transformers", "plain"]
"""Whether, and in which server's way, token ids and logprobs are asked for; ``auto``: the endpoint is probed."""
CAPTURES: tuple[str, ...] = get_args(Capture)
Reasoning = Literal["send", "drop"]
"""Whether what a model thought goes back to its server with the conversation, whose template says what of it stays."""
REASONINGS: tuple[str, ...] = get_args(Reasoning)


class Sampling(Record):
    """What is asked of the sampler; None leaves the server's own default."""

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    min_p: float | None = Field(default=None, ge=0, le=1)
    max_tokens: int = Field(default=2048, gt=0)
    seed: int | None = None

    @property
    def said(self) -> frozenset[str]:
        """The names of what is asked for."""
        return frozenset(name for name, value in self if value is not None)


class ModelSpec(Record):
    """An endpoint and its sampling. ``key_variable`` names the environment variable; the key itself is never stored.

    ``others`` are further endpoints of the same model, the same weights, and the same kind of server: with ``base_url``
    they are a pool (``gateway/pool.py``).
    """

    name: str
    base_url: str = Field(description="ends before /chat/completions; or in /responses, /completions: the shape")
    key_variable: str | None = None
    sampling: Sampling = Sampling()
    context_tokens: int | None = Field(default=None, gt=0)
    timeout_s: float = Field(default=600.0, gt=0)
    others: tuple[str, ...] = Field(default=(), description="further base_urls")
    capture: Capture = Field(default="off", description="ask for token ids and logprobs: docs/gateway.md")
    capture_least: CaptureLevel | None = Field(default=None, description="a run refuses to begin below this level")
    vocabulary: int | None = Field(default=None, gt=0, description="how many ids it has, where the server is silent")
    reasoning: Reasoning = Field(default="send", description="whether the model is given its thoughts again")
    policy_version: str | None = Field(default=None, description="of the weights, where the server does not tell it")

    @property
    def addresses(self) -> tuple[str, ...]:
        """All its endpoints."""
        return (self.base_url, *self.others)

    @property
    def captures(self) -> bool:
        """Token ids are asked for."""
        return self.capture != "off"

    def at(self, url: str) -> Self:
        """The same at this one endpoint."""
        return self if url == self.base_url and not self.others else \
            self.model_copy(update={"base_url": url, "others": ()})


class AgentLimits(Record):
    """Declared budgets of one attempt. Reaching one ends the attempt with its own stop reason; the work is verified."""

    turns: int = Field(default=50, gt=0)
    tool_calls: int = Field(default=200, gt=0)
    tokens: int | None = Field(default=None, gt=0, description="prompt and completion tokens together")
    wall_s: float | None = Field(default=None, gt=0, description="None: the task's agent_timeout_s")
    tool_timeout_s: float = Field(default=120.0, gt=0)
    depth: int = Field(default=1, ge=0, description="how deep sub-tasks may lie in one another, with 'delegate'")


class Agent(Record):
    """Config of who tries: ``harness`` is a name a plugin answers to (oracle, nop, replay:FILE, loop, external:X)."""

    name: str
    harness: str
    model: ModelSpec | None = None
    limits: AgentLimits = AgentLimits()
    policy: SandboxPolicy = Field(default=SandboxPolicy(), description="of its sandbox, beside the task's limits")
    dialect: str = Field(default="auto", description="how tool calls are written: docs/dialects.md")
    tools: tuple[str, ...] = Field(default=("default",), description="sets of tools and single ones, by name")
    durability: Durability = Field(default=Durability.COARSE, description="coarse | fine: docs/durability.md")
    checkpoint: CheckpointRule = Field(default=CheckpointRule(), description="when a fine attempt's files are kept")

    def policy_within(self, declared: Limits, network: NetworkPolicy | None = None) -> SandboxPolicy:
        """What binds a sandbox of this agent at a task that declares these limits: the narrower of both.

        Hosts that the task declares (``network``) are reached beside the agent's own; its own rule for one decides.

        But for ``wall_s``: :meth:`wall_within` ends the acting, and not the sandbox, whose work is still verified.
        """
        limits = declared.within(self.policy.limits).model_copy(update={"wall_s": None})
        bound = self.policy.model_copy(update={"limits": limits})
        return bound.model_copy(update={"network": self.policy.network.beside(network)}) if network else bound

    def wall_within(self, timeout_s: float, declared: Limits) -> float:
        """Seconds this agent may act at a task of ``timeout_s`` that declares these limits."""
        bounds = (self.limits.wall_s or timeout_s, declared.wall_s, self.policy.limits.wall_s)
        return min(bound for bound in bounds if bound is not None)
