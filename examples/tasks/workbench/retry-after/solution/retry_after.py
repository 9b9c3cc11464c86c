"""The Retry-After header (RFC 9110, section 10.2.3), read without trust."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from courier.transport import Response

_SECONDS = re.compile(r"[0-9]+")
_MAX_DIGITS = 15  # more than any cap; int() refuses thousands of digits


def retry_after(response: Response, now: float) -> float | None:
    """Seconds from ``now`` that the server asks to wait, 0 for the past; None where it does not say."""
    value = next((value.strip() for name, value in response.headers.items() if name.lower() == "retry-after"), "")
    if _SECONDS.fullmatch(value):
        digits = value.lstrip("0")
        return math.inf if len(digits) > _MAX_DIGITS else float(digits or 0)
    moment = _http_date(value)
    return None if moment is None else max(0.0, moment - now)


def _http_date(value: str) -> float | None:
    """The date as seconds since the epoch. The asctime format names no zone; it is GMT as well."""
    try:
        moment = parsedate_to_datetime(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
