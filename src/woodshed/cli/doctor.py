"""``woodshed doctor``: what works on this machine, and how to mend what does not."""

from __future__ import annotations

import asyncio

import typer

from woodshed import plugins, settings
from woodshed.cli.output import Json, emit_json, out, plain
from woodshed.errors import WoodshedError
from woodshed.sandbox.native.probe import Finding, probe
from woodshed.sandbox.remote.probe import probe as probe_engine


def doctor(json: Json = False) -> None:
    """Try what Woodshed needs by doing it. Exit 0 when the default engine works here, 1 otherwise."""
    findings = asyncio.run(_findings())
    ready = all(finding.ok for finding in findings if finding.required)
    if json:
        emit_json({"ready": ready, "findings": [finding.to_json() for finding in findings]})
    else:
        for finding in findings:
            mark = "[green]ok  [/]" if finding.ok else ("[red]no  [/]" if finding.required else "[yellow]–   [/]")
            out.print(f"{mark}{finding.name}: {plain(finding.detail)}", soft_wrap=True)
            if not finding.ok and finding.remedy:
                out.print(f"      {plain(finding.remedy)}", soft_wrap=True)
        out.print("ready" if ready else "not ready: mend the lines marked no", style="bold")
    raise typer.Exit(0 if ready else 1)


async def _findings() -> list[Finding]:
    """Of the native engine, then of every other one."""
    findings = list(await probe(settings.home()))
    for name in plugins.names("engines"):
        if name != "native":
            try:
                findings.append(await probe_engine(plugins.engine(name, settings.home())))
            except WoodshedError as error:  # it is declared, but cannot be loaded
                findings.append(Finding(f"{name} engine", False, str(error), required=False))
    return findings
