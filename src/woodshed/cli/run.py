"""``woodshed run``: tasks × agents × attempts, with a live bar and a closing table."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from woodshed.cli.driving import driven
from woodshed.cli.output import Json, emit_json, note, number, out, percent, plain, table, warn
from woodshed.errors import UsageError
from woodshed.model import Agent, AgentLimits, Durability, Run, RunSpec, Sampling, SandboxPolicy, Task
from woodshed.sandbox.native.places import sweep
from woodshed.services import agents as agent_service
from woodshed.services import boxes, declared, durations, lasting, projects, report, rulesets, runs, shared
from woodshed.services.home import Home, opened

Tasks = Annotated[list[str] | None, typer.Argument(help="Task folders, or folders of them.", show_default=False)]
Agents = Annotated[list[str] | None, typer.Option(
    "--agent", "-a", help="oracle, nop, patch:FILE, replay:FILE, cheat:NAME, loop, external:NAME; repeatable.")]
Model = Annotated[str | None, typer.Option(help="local, local:NAME, FILE.gguf, or NAME@URL.")]
Attempts = Annotated[int, typer.Option("-n", "--attempts", min=1, help="Attempts of each task by each agent.")]
Concurrency = Annotated[int | None, typer.Option("--concurrency", "-c", min=1, help="Attempts at a time (default: 2).")]
Seed = Annotated[int, typer.Option(help="Fixes the seed of every attempt.")]
Engine = Annotated[str | None, typer.Option(help="Sandbox engine (default: WOODSHED_ENGINE or native).")]
Resume = Annotated[str | None, typer.Option(metavar="RUN", help="Finish an interrupted run; 'last' is the newest.")]
New = Annotated[bool, typer.Option("--new", help="Start anew even if the same run was interrupted.")]
Turns = Annotated[int, typer.Option(min=1, help="Turns of a model before its attempt is cut off.")]
ToolCalls = Annotated[int, typer.Option(min=1, help="Tool calls before an attempt is cut off.")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Prompt and completion tokens of an attempt together.")]
Wall = Annotated[float | None, typer.Option(min=0.1, metavar="SECONDS", help="Wall time of acting (default: task's).")]
Temperature = Annotated[float | None, typer.Option(min=0.0, help="Sampling temperature (default: the server's).")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens of one answer.")]
KeyVariable = Annotated[str | None, typer.Option("--model-key", metavar="VARIABLE", help="Variable holding the key.")]
Capture = Annotated[str, typer.Option(
    help="Ask for token ids and logprobs: off, auto, or a server (vllm, sglang, llama.cpp, transformers, plain).")]
RequireCapture = Annotated[str | None, typer.Option(
    metavar="LEVEL", help="Refuse to run where the endpoint tells less: tokens+logprobs, tokens or text.")]
PolicyVersion = Annotated[str | None, typer.Option(
    metavar="VERSION", help="Of the model's weights, where the server does not tell it; stands in each record.")]
Person = Annotated[str | None, typer.Option(
    metavar="MODEL", help="Plays the persons of tasks that have one: local, or NAME@URL; its key as --model-key.")]
Verifier = Annotated[str, typer.Option(help="fresh, or poisoned: a second run whose secretly broken tests must fail.")]
Policy = Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file of the agents' policy; docs/policy.md.")]
Rules = Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file of reward rules; docs/rewards.md.")]
Retry = Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file of retry rules; docs/retries.md.")]
Deadline = Annotated[list[str] | None, typer.Option(
    metavar="STAGE=TIME", help="The most a stage may take: prepare, act, capture, verify, close; repeatable.")]
RunDeadline = Annotated[str | None, typer.Option(
    metavar="TIME", help="Then nothing more begins and what runs is cut off; it can be resumed.")]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse tasks without a current calibration, or in quarantine.")]
Quarantined = Annotated[bool, typer.Option("--quarantined", help="Run tasks in quarantine, too.")]
Dialect = Annotated[str, typer.Option(help="How calls are written: auto, tools, strict, text, or a family of models.")]
Tools = Annotated[str, typer.Option(
    metavar="NAMES", help="Tools of loop, by commas: default, session, jobs, plan, delegate, or single ones.")]
Detach = Annotated[bool, typer.Option("--detach", help="Leave it to workers ('woodshed worker'); starts nothing here.")]
Priority = Annotated[int | None, typer.Option(help="With --detach: a higher one goes first (default: 0).")]
Pool = Annotated[str, typer.Option(metavar="NAME", help="With --detach: for workers of this pool alone.")]
Key = Annotated[str | None, typer.Option(help="With --detach: given again, it names the run made with it before.")]
Project = Annotated[str | None, typer.Option(
    metavar="NAME", help="Whose run it is: projects share workers evenly (default: WOODSHED_PROJECT or default).")]
Lasts = Annotated[Durability, typer.Option(
    "--durability", help="fine: an attempt that is cut off goes on at its turn; docs/durability.md.")]
Checkpoint = Annotated[str | None, typer.Option(
    metavar="RULE", help="With --durability fine: how often files are kept (turns=10,minutes=5).")]
NotBefore = Annotated[datetime | None, typer.Option(
    metavar="ISO", formats=["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M%z", "%Y-%m-%dT%H:%M"],
    help="With --detach: begin at this time at the earliest; local unless it says otherwise.")]


def run(
    tasks: Tasks = None,
    agent: Agents = None,
    model: Model = None,
    attempts: Attempts = 1,
    concurrency: Concurrency = None,
    seed: Seed = 0,
    engine: Engine = None,
    resume: Resume = None,
    new: New = False,
    turns: Turns = 50,
    tool_calls: ToolCalls = 200,
    tokens: Tokens = None,
    wall: Wall = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = 2048,
    model_key: KeyVariable = None,
    capture: Capture = "off",
    require_capture: RequireCapture = None,
    policy_version: PolicyVersion = None,
    person: Person = None,
    dialect: Dialect = "auto",
    tools: Tools = "default",
    policy: Policy = None,
    rules: Rules = None,
    retry: Retry = None,
    durability: Lasts = Durability.COARSE,
    checkpoint: Checkpoint = None,
    deadline: Deadline = None,
    run_deadline: RunDeadline = None,
    verifier: Verifier = "fresh",
    strict: Strict = False,
    quarantined: Quarantined = False,
    detach: Detach = False,
    priority: Priority = None,
    key: Key = None,
    not_before: NotBefore = None,
    pool: Pool = "",
    project: Project = None,
    json: Json = False,
) -> None:
    """Attempt tasks and judge each attempt in a fresh sandbox. Exit 0 when the run finished, whatever the pass rate."""
    if resume is not None:
        _alone(tasks=tasks, agent=agent, model=model, person=person, policy=policy, rules=rules, retry=retry,
               checkpoint=checkpoint, deadline=deadline, durability=durability is not Durability.COARSE,
               project=project)
    _for_workers(detach, resume, given=not (priority is None and key is None and not_before is None and not pool))
    project = projects.named(project)
    with opened() as home:
        if resume is not None:
            _go_on(home, resume, concurrency, run_deadline, json)
            return
        if not tasks or not agent:
            raise UsageError("nothing to run", remedy="Say: woodshed run FOLDER --agent oracle")
        agents, bound = chosen(
            agent, model, policy, dialect=dialect, temperature=temperature, max_tokens=max_tokens, model_key=model_key,
            turns=turns, tool_calls=tool_calls, tokens=tokens, wall=wall, tools=tools, capture=capture,
            require_capture=require_capture, policy_version=policy_version)
        spec, found = runs.plan(
            tasks, lasting.lasting(agents, durability, checkpoint), attempts=attempts, concurrency=concurrency or 2,
            seed=seed, engine=boxes.engine_of(bound, engine), verifier=verifier, strict=strict, quarantined=quarantined,
            rules=rulesets.load(rules) if rules else None, retry=declared.load_retry(retry) if retry else None,
            deadlines=declared.deadlines(deadline or (), run_deadline), tell=note,
            person=agent_service.parse_model(
                person, sampling=Sampling(), key_variable=model_key, field="--person") if person else None)
        if detach:
            _detach(shared.submit(home, spec, found, priority=priority or 0, key=key, slots=concurrency, pool=pool,
                                  not_before=not_before.astimezone(UTC) if not_before else None, project=project), json)
        else:
            _start(home, spec, found, new, project, json)


def _for_workers(detach: bool, resume: str | None, *, given: bool) -> None:
    """What is for workers goes with --detach, and nothing else does. Raises UsageError."""
    if given and not detach:
        raise UsageError("--priority, --key, --not-before and --pool are for workers", remedy="Add --detach.")
    if detach and resume is not None:
        raise UsageError("--resume works here and now", remedy="Leave --detach out, or say: woodshed runs open RUN")


def _alone(**options: object) -> None:
    """Nothing stands beside --resume that would seem to change the run. Raises UsageError naming it."""
    if (given := [name for name, value in options.items() if value]):
        named = ", ".join(name if name == "tasks" else f"--{name}" for name in given)
        raise UsageError(f"--resume goes on with the run as it was, and takes no {named}",
                         remedy="The run remembers them; --concurrency and --run-deadline may be others.")


def chosen(
    agent: list[str], model: str | None, policy: Path | None, *, dialect: str, temperature: float | None,
    max_tokens: int, model_key: str | None, turns: int, tool_calls: int, tokens: int | None, wall: float | None,
    tools: str = "default", capture: str = "off", require_capture: str | None = None,
    policy_version: str | None = None,
) -> tuple[tuple[Agent, ...], SandboxPolicy | None]:  # fmt: skip
    """The agents that these options mean, and the policy that binds them."""
    if dialect not in ("auto", "tools", "text"):
        from woodshed.harness.dialects import NAMES  # with the readers of all formats, which few commands need

        if dialect not in NAMES:
            raise UsageError(f"unknown dialect '{dialect}'", field="--dialect", remedy=f"Known: {', '.join(NAMES)}.")
    spec = agent_service.parse_model(
        model, sampling=Sampling(temperature=temperature, max_tokens=max_tokens), key_variable=model_key,
        capture=capture, require=require_capture, policy_version=policy_version,
    ) if model else None  # fmt: skip
    bound = boxes.load_policy(policy) if policy else None
    limits = AgentLimits(turns=turns, tool_calls=tool_calls, tokens=tokens, wall_s=wall)
    return agent_service.build(agent, spec, limits=limits, dialect=dialect, policy=bound,
                               tools=[name.strip() for name in tools.split(",") if name.strip()]), bound


def _detach(run: Run, json: bool) -> None:
    if json:
        emit_json({"run": run.id, "project": run.project, "state": run.state.value})
    else:
        out.print(f"{run.id}: {run.state.value}")
        note(f"workers take it from here: woodshed worker · woodshed show {run.id} · woodshed runs cancel {run.id}")


def _start(home: Home, spec: RunSpec, found: list[Task], new: bool, project: str, json: bool) -> None:
    earlier = None if new else runs.resumable(home, spec, project)
    if earlier is not None:
        note(f"the same run was interrupted before: resuming {earlier.id} (--new starts another)")
        _go_on(home, earlier.id, spec.concurrency, None, json)
    else:
        _finish(home, lambda p: runs.start(home, spec, found, p, sweep=partial(sweep, home.path), tell=note,
                                           project=project), json)


def _go_on(home: Home, run: str, concurrency: int | None, run_deadline: str | None, json: bool) -> None:
    run_s = durations.seconds(run_deadline, "--run-deadline") if run_deadline else None
    _finish(home, lambda p: runs.resume(home, run, p, concurrency=concurrency, run_s=run_s,
                                         sweep=partial(sweep, home.path), tell=note), json)


def _finish(home: Home, drive: Callable[[runs.Progress], Coroutine[Any, Any, Run]], json: bool) -> None:
    started = time.perf_counter()
    finished = driven(drive, resume="woodshed run --resume")
    summary = report.summary(home, finished, elapsed_s=time.perf_counter() - started)
    folder = report.write_results(home, finished, summary)
    if json:
        emit_json(summary)
    else:
        print_summary(summary, folder)


def print_summary(summary: dict[str, Any], folder: Path | None) -> None:
    """The closing table: agent × task group, and where the results lie."""
    k = max((row["k"] for row in summary["groups"]), default=1)
    graded = any(row["unknown_totals"] or row["mean_total"] not in (None, row["passed"] / max(row["valid"], 1))
                 for row in summary["groups"])
    rows = [
        (
            row["agent"] if row["model"] is None else f"{row['agent']} ({row['model']})", row["group"],
            str(row["attempts"]), percent(row["valid_rate"]), str(row["passed"]), _causes(row["invalid"]),
            percent(row["pass_at_1"]), *((percent(row["pass_at_k"]),) if k > 1 else ()),
            *((number(row["mean_total"], lambda v: f"{v:.3f}"),) if graded else ()), number(row["mean_turns"]),
            number(row["mean_tokens"], lambda v: f"{v:.0f}"), number(row["mean_seconds"], lambda v: f"{v:.2f}"),
        )
        for row in summary["groups"]
    ]  # fmt: skip
    columns = (
        "agent", "tasks", "#attempts", "#valid", "#passed", "invalid", "#pass@1",
        *((f"#pass@{k}",) if k > 1 else ()), *(("#total",) if graded else ()), "#turns", "#tokens", "#seconds",
    )  # fmt: skip
    table(columns, rows)
    out.print(f"{summary['run']}: {summary['state']} in {summary['elapsed_s']:.1f} s"
              + (f" ({plain(summary['reason'])})" if summary["reason"] else ""))
    if summary["used"]["all"]["sandboxes"]:
        out.print(f"sandboxes: {_used(summary['used']['all'])}; the verifier's: {_used(summary['used']['verifier'])}")
    if (captured := summary.get("capture")) is not None:
        calls = ", ".join(f"{count} {level}" for level, count in captured["calls"].items()) or "none"
        lost = f"; {captured['flawed_calls']} of them, in {captured['flawed_attempts']} attempts, cannot be trained on"
        out.print(f"captured calls: {calls}{lost if captured['flawed_calls'] else ''}",
                  style="bold red" if captured["flawed_calls"] else None)
    warn(summary)
    if folder is not None:
        out.print(f"results: {folder}")
    out.print(f"look closer: woodshed show {summary['run']} · woodshed trace {summary['run']}.1")


def _used(used: dict[str, Any]) -> str:
    """What sandboxes took, in a few words; what is unknown is a dash."""
    megabytes = {name: number(used[f"{name}_bytes"], lambda v: f"{v / (1 << 20):.0f} MB")
                 for name in ("memory_peak", "disk")}
    return (f"{used['sandbox_s']:.1f} s, {number(used['cpu_s'], lambda v: f'{v:.1f} s')} of CPU, "
            f"at most {megabytes['memory_peak']} of memory and {megabytes['disk']} of disk")


def _causes(invalid: dict[str, int]) -> str:
    return ", ".join(f"{count} {cause}" for cause, count in sorted(invalid.items())) or "–"
