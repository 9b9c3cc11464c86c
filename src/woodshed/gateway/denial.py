"""What a program is told where there is no answer. The endpoint's address and words stay in the attempt's log."""

from __future__ import annotations

from woodshed.errors import ContextExceeded, ModelFault, ModelRateLimited, ModelRefused, WoodshedError
from woodshed.gateway.dialects import Failure
from woodshed.model import StopReason

BUSY = Failure(429, "rate_limit_error", "too many calls of this attempt run already", code="too_many_calls",
               again=True, after_s=1.0)
DEAD_KEY = Failure(401, "authentication_error", "this key opens nothing here", code="invalid_api_key")
NOT_FOUND = Failure(404, "invalid_request_error", "nothing is served here", code="not_found")
BROKEN = Failure(500, "server_error", "the gateway failed")
_FULL = "This model's maximum context length is exceeded: shorten the messages."
"""In the words by which programs that keep no code tell this failure from others."""


def limit(reached: StopReason) -> Failure:
    """A declared limit forbids this call and every other one."""
    name = reached.value.replace("_", " ")
    return Failure(403, "permission_error", f"the attempt's {name} is reached: no more calls", code="budget_exceeded")


def of_fault(fault: WoodshedError) -> Failure:
    """What ``fault`` of a call is to the program that made it. What was retried here need not be retried there."""
    if isinstance(fault, ContextExceeded):
        return Failure(400, "invalid_request_error", _FULL, code="context_length_exceeded", param="messages")
    if isinstance(fault, ModelRateLimited):
        return Failure(429, "rate_limit_error", "the model's endpoint asks to slow down", code="rate_limit_exceeded",
                       again=True, after_s=fault.retry_after_s)
    if isinstance(fault, ModelRefused):
        return Failure(400, "invalid_request_error", "the model's endpoint refuses this request", code="model_refused")
    if isinstance(fault, ModelFault):
        return Failure(502, "server_error", "the model's endpoint failed", code="model_unreachable")
    return BROKEN
