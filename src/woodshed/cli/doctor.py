"""``woodshed doctor``: what works on this machine, and how to mend what does not."""

from __future__ import annotations

import asyncio

import typer

from woodshed import settings
from woodshed.cli.output import Json, emit_json, out, plain
from woodshed.sandbox.native.probe import probe


def doctor(json: Json = False) -> None:
    """Try what Woodshed needs by doing it. Exit 0 when the default engine works here, 1 otherwise."""
    findings = asyncio.run(probe(settings.home()))
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
