"""loop: observe, act, verify. Our own harness; everything it needs to know stands on this screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from woodshed.errors import ContextExceeded, ModelRefused, UsageError
from woodshed.harness import dialects
from woodshed.harness.argument import no_argument
from woodshed.harness.context import Conversation
from woodshed.harness.hands import Hands
from woodshed.harness.kit import Kit
from woodshed.harness.limits import Meter
from woodshed.harness.pace import Pace
from woodshed.harness.person import Person
from woodshed.harness.shelf import Shelf
from woodshed.harness.stuck import Repeats
from woodshed.harness.subtask import Delegation, Ending, Family
from woodshed.harness.tools import chosen
from woodshed.interfaces import Acting, ModelClient, ModelResponse
from woodshed.model import StopReason, ToolCall
from woodshed.model.address import continues

REMINDERS = 2


class Loop:
    """Asks the model, carries out its calls, shows it the results, until it is done or a limit is reached."""

    needs_model = True
    resumable = True
    hears = True

    def __init__(self, argument: str | None = None) -> None:
        no_argument("loop", argument)

    async def act(self, acting: Acting) -> StopReason:
        """Why it ended. Raises UsageError without a model, ModelFault, HarnessFault, and the sandbox's faults."""
        return (await converse(acting, Family())).stop


async def converse(acting: Acting, family: Family) -> Ending:
    """One conversation, from the task to its end."""
    if acting.model is None:
        raise UsageError("the agent 'loop' needs a model", field="model", remedy="Give one with --model.")
    meter, kit = Meter(acting), Kit(acting.task, Shelf(acting.blobs), acting.emit)
    if family.depth < acting.agent.limits.depth:
        kit.delegate = Delegation(acting, meter, kit, family, converse)
    hands = Hands(acting, chosen(acting.agent.tools), meter, kit)
    spec = acting.agent.model
    dialect = dialects.named(acting.agent.dialect, spec.name if spec else "",
                             raw=spec is not None and continues(spec.base_url))
    talk = Conversation(acting, dialect, hands.specs, kit, prefix=family.prefix)
    try:
        stop = await _turns(acting, acting.model, talk, hands, meter, Person(acting, kit, talk))
    finally:
        await hands.close()
    return Ending(stop, talk.last_words(), kit.history)


async def _turns(
    acting: Acting, model: ModelClient, talk: Conversation, hands: Hands, meter: Meter, person: Person
) -> StopReason:
    """Turn after turn; why there are no more."""
    pace, repeats, idle = Pace(), Repeats(acting.emit), 0
    while (stop := await _before_turn(acting, talk, meter, person)) is None:
        response = await _ask(model, talk, meter, pace)
        if isinstance(response, StopReason):
            return response
        reading, end = talk.hear(response), None
        if reading.calls:
            idle, end = 0, await _carry_out(reading.calls, talk, hands, meter, repeats)
        elif talk.over():
            end = talk.end()
        elif "?" in response.content and await person.answer():
            idle = 0
        elif (idle := idle + 1) > REMINDERS:
            return StopReason.NO_ACTION
        else:
            talk.remind(repeats.say(response.content))
        if end is not None and not await _more(end, meter, person):
            return end
    return stop


async def _more(end: StopReason, meter: Meter, person: Person) -> bool:
    """Whether somebody who was told that all is done wants more, and there may be more."""
    return end is StopReason.FINISHED and meter.reached() is None and await person.speak(finished=True)


async def _before_turn(acting: Acting, talk: Conversation, meter: Meter, person: Person) -> StopReason | None:
    """What the model must know is told; the limit that forbids another turn, or None."""
    if acting.between_turns is not None:
        for text in await acting.between_turns():
            talk.tell(text)
    if (stop := meter.reached()) is None:
        await person.speak()
    return stop


async def _ask(model: ModelClient, talk: Conversation, meter: Meter, pace: Pace) -> ModelResponse | StopReason:
    """The answer, or why there can be none. Raises a ModelFault; a dead endpoint is one, a slow model is not."""
    while True:
        request, started = talk.request(meter.tokens_left()), time.monotonic()
        try:
            async with asyncio.timeout(meter.call_s()):
                response = await model.call(request)
        except ContextExceeded:
            if not talk.shrink():
                return StopReason.CONTEXT
        except ModelRefused as refusal:
            if not talk.fall_back(refusal):
                raise
        except TimeoutError as late:
            if (fault := pace.verdict(time.monotonic() - started, request.max_tokens or 0, late)) is not None:
                raise fault from None
            return StopReason.WALL
        else:
            pace.answered(response, max(time.monotonic() - started, response.seconds))  # a recorded one comes at once
            meter.turn(response, talk.tokens())
            return response


async def _carry_out(
    calls: Sequence[ToolCall], talk: Conversation, hands: Hands, meter: Meter, repeats: Repeats
) -> StopReason | None:
    """Do the calls in order, at once where they only read; the reason to stop, if one of them gave it."""
    for batch in hands.batches(calls):
        allowed = batch[:meter.calls_left()]
        for call, result in zip(allowed, await hands.all(allowed), strict=True):
            talk.observe(call, result, repeats.see(call, result, talk.turn))
            if result.done or repeats.hopeless:
                return StopReason.FINISHED if result.done else StopReason.STUCK
        if len(allowed) < len(batch):
            return meter.no_more_calls() or StopReason.TOOL_CALLS
    return None
