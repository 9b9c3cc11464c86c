"""Whether anything listens at an endpoint. Sends no byte: ``call`` stays the only road to a model."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from woodshed.model import ModelSpec


async def reachable(spec: ModelSpec, *, timeout_s: float = 10.0) -> bool:
    """True when a TCP connection to the endpoint opens, or when a proxy stands between and only a call can tell."""
    url = urlsplit(spec.base_url)
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    if url.scheme in getproxies() and not proxy_bypass(host):
        return True
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
