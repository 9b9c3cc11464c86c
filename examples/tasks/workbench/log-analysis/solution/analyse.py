"""Work out the figures from the access log."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

LINE = re.compile(
    r'(?P<address>[0-9A-Fa-f.:]+) - \S+ \[(?P<time>[^\]]+)\] "[A-Z]+ (?P<target>[^ "]+) [^ "]+" (?P<status>\d{3}) '
    r'(?P<size>\d+|-) "(?:[^"\\]|\\.)*" "(?:[^"\\]|\\.)*" (?P<seconds>\d+)\.(?P<thousandths>\d{3})'
)


@dataclass(frozen=True)
class Hit:
    """One valid line."""

    client: str
    hour: str
    path: str
    status: int
    size: int
    duration_ms: int


def parse(line: str) -> Hit | None:
    """What a line says; None if it is malformed."""
    match = LINE.fullmatch(line)
    if match is None:
        return None
    try:
        client = str(ip_address(match["address"]))
        time = datetime.strptime(match["time"], "%d/%b/%Y:%H:%M:%S %z").astimezone(UTC)
    except ValueError:
        return None
    return Hit(
        client=client,
        hour=time.strftime("%Y-%m-%dT%H:00:00Z"),
        path=match["target"].partition("?")[0],
        status=int(match["status"]),
        size=0 if match["size"] == "-" else int(match["size"]),
        duration_ms=int(match["seconds"]) * 1000 + int(match["thousandths"]),
    )


def lines(folder: Path) -> Iterator[str]:
    """Every line that is one. Latin-1 gives each byte a character, so no byte can stop us."""
    for name in ("access.log.1", "access.log"):
        for line in (folder / name).read_text(encoding="latin-1").split("\n"):
            if line.strip():
                yield line


def figures(parsed: list[Hit | None]) -> dict[str, Any]:
    """The answer."""
    hits = [hit for hit in parsed if hit is not None]
    hour, requests = Counter(hit.hour for hit in hits).most_common(1)[0]
    errors = Counter(hit.path for hit in hits if 500 <= hit.status <= 599)
    top = sorted(errors.items(), key=lambda item: (-item[1], item[0]))[:3]
    api = sorted(hit.duration_ms for hit in hits if hit.path.startswith("/api/") and hit.path != "/api/health")
    return {
        "valid_lines": len(hits),
        "malformed_lines": len(parsed) - len(hits),
        "clients": len({hit.client for hit in hits}),
        "bytes_sent": sum(hit.size for hit in hits),
        "busiest_hour": hour,
        "busiest_hour_requests": requests,
        "top_server_errors": [{"path": path, "count": count} for path, count in top],
        "api_p95_ms": api[math.ceil(0.95 * len(api)) - 1],
    }


if __name__ == "__main__":
    answer = figures([parse(line) for line in lines(Path("/workspace/logs"))])
    Path("/workspace/answer.json").write_text(json.dumps(answer, indent=2) + "\n")
