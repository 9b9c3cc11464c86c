"""The loop, against a scripted server over HTTP, with real commands in a directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localbox import LocalBox
from scripted import act, bash, fenced, said
from woodshed.errors import ModelGarbled, ModelRateLimited, ModelRefused, ModelUnreachable, UsageError
from woodshed.gateway.call import Patience
from woodshed.harness.loop import Loop
from woodshed.harness.pace import Pace
from woodshed.interfaces import ModelResponse
from woodshed.model import EventKind, StopReason, Usage


async def test_native_calls_act_and_finish(tmp_path: Path) -> None:
    """Calls are carried out in order, results go back as tool messages, and finish ends it."""
    done = await act(Loop(), tmp_path, said("I look", ("bash", {"command": "echo one > a"}),
                                            ("bash", {"command": "cat a"})), said("", ("finish", {"summary": "ok"})))
    assert done.stop is StopReason.FINISHED
    assert done.results == ["", "one", "ok"]
    assert done.acting.usage == Usage(turns=2, tool_calls=3, prompt_tokens=20, completion_tokens=2)
    sent = done.requests[1]["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "tool"]
    ids = [call["id"] for call in sent[2]["tool_calls"]]
    assert ids == [sent[3]["tool_call_id"], sent[4]["tool_call_id"]] == ["t0001c001", "t0001c002"]
    assert "/workspace" in sent[0]["content"]
    assert sent[1]["content"] == "Do it."


async def test_text_dialect_acts_by_fences_and_ends_with_done(tmp_path: Path) -> None:
    """Without tools on offer a bash block is run, its output comes back as a user message, and DONE is the end."""
    done = await act(Loop(), tmp_path, fenced("echo 5; exit 3"), said("DONE"), dialect="text")
    assert done.stop is StopReason.FINISHED
    assert "tools" not in done.requests[0]
    answer = done.requests[1]["messages"][-1]
    assert answer["role"] == "user"
    assert "Exit code: 3" in answer["content"]
    assert "\n5\n" in answer["content"]


async def test_prose_after_successful_work_is_the_end_in_text_and_auto(tmp_path: Path) -> None:
    """Small models say that they are done in words; after work that succeeded that is believed, to be verified."""
    for dialect in ("text", "auto"):
        done = await act(Loop(), tmp_path, fenced("true"), said("I created the file."), dialect=dialect)
        assert (done.stop, len(done.requests)) == (StopReason.FINISHED, 2)


async def test_an_answer_that_the_server_could_not_read_is_no_end(tmp_path: Path) -> None:
    """llama.cpp may lose what its model wrote: after work that succeeded, too, that is answered and not the end."""
    lost = (500, json.dumps({"error": {
        "message": "The model produced output that does not match the expected peg-native format"}}))
    done = await act(Loop(), tmp_path, fenced("true"), lost, said("I created the file."))
    assert (done.stop, len(done.requests)) == (StopReason.FINISHED, 3)
    assert "could not be read" in done.requests[2]["messages"][-1]["content"]


async def test_prose_after_failed_work_is_answered(tmp_path: Path) -> None:
    """After a command that failed, prose is not the end: the model is told what an action looks like."""
    done = await act(Loop(), tmp_path, fenced("false"), said("All good."), fenced("true"), said("Good."),
                     dialect="text")
    assert (done.stop, len(done.requests)) == (StopReason.FINISHED, 4)
    assert "holds no command" in done.requests[2]["messages"][-1]["content"]


@pytest.mark.parametrize("dialect", ["auto", "tools", "text"])
async def test_no_action_is_answered_twice_and_then_ends(tmp_path: Path, dialect: str) -> None:
    """An answer without an action gets help twice; a third one ends the attempt with its own reason."""
    done = await act(Loop(), tmp_path, said("Hello! How can I help?"), dialect=dialect)
    assert (done.stop, len(done.requests)) == (StopReason.NO_ACTION, 3)
    assert done.acting.usage.tool_calls == 0


async def test_done_before_anything_was_done_is_answered(tmp_path: Path) -> None:
    """DONE as the first word is no end: the model is told how to act, and may."""
    done = await act(Loop(), tmp_path, said("DONE"), fenced("touch a"), said("DONE"), dialect="text")
    assert (done.stop, len(done.requests), done.acting.usage.tool_calls) == (StopReason.FINISHED, 3, 1)
    assert "DONE" not in done.requests[1]["messages"][-1]["content"]


async def test_an_action_resets_the_patience(tmp_path: Path) -> None:
    """Only answers in a row without an action count."""
    idle = said("Hm.")
    done = await act(Loop(), tmp_path, idle, idle, bash("false"), idle, idle, bash("true"), said("DONE"))
    assert (done.stop, len(done.requests)) == (StopReason.FINISHED, 7)


@pytest.mark.parametrize(("call", "needle"), [
    (("bsh", {"command": "ls"}), "Did you mean 'bash'?"),
    (("str_replace_editor", {"command": "view"}), "Did you mean 'edit_file'?"),
    (("bash", "{\"command\": \"ls\", oops}"), "at line 1 column 19"),
    (("bash", "[]"), "a JSON array where an object"),
    (("bash", {}), "'command' is missing"),
    (("bash", {"cmd": "ls", "command": "ls"}), "unknown argument 'cmd'"),
    (("bash", {"command": 3}), "'command' must be of type string, not int"),
    (("read_file", {"path": "a", "start": True}), "'start' must be of type integer, not bool"),
    (("bash", {"command": "ls \0"}), "holds a NUL character"),
    (("read_file", {"path": "x" * 5000}), "name too long"),
    (("bash", {"command": "x" * 200_000}), "too long"),
    (("", {}), "There is no tool ''"),
    (("bash", "{\"command\": \"\\ud800\"}"), "surrogate"),
    (("bash", "{\"command\": NaN}"), "NaN"),
])
async def test_malformed_calls_are_answered_and_counted(
    tmp_path: Path, call: tuple[str, object], needle: str
) -> None:
    """Whatever a model writes as a call, the answer says what is wrong; it counts, and the loop goes on."""
    done = await act(Loop(), tmp_path, said("", call), said("", ("finish", {"summary": "I could not do it."})))
    assert done.stop is StopReason.FINISHED
    assert needle in done.results[0]
    assert done.acting.usage.tool_calls == 2
    assert needle in done.requests[1]["messages"][-1]["content"]
    json.loads(done.requests[1]["messages"][2]["tool_calls"][0]["function"]["arguments"])


async def test_turn_limit(tmp_path: Path) -> None:
    """The turn after the last one allowed is not taken."""
    done = await act(Loop(), tmp_path, *[bash(f"echo {n}") for n in range(9)], limits={"turns": 3})
    assert (done.stop, len(done.requests), done.acting.usage.turns) == (StopReason.TURNS, 3, 3)


async def test_tool_call_limit(tmp_path: Path) -> None:
    """The call after the last one allowed is not made, even in the middle of an answer."""
    calls = [("bash", {"command": f"touch {n}"}) for n in range(5)]
    done = await act(Loop(), tmp_path, said("", *calls), limits={"tool_calls": 3})
    assert (done.stop, done.acting.usage.tool_calls) == (StopReason.TOOL_CALLS, 3)
    assert sorted(path.name for path in (tmp_path / "box/workspace").iterdir()) == ["0", "1", "2"]


async def test_token_limit_binds_with_and_without_reported_tokens(tmp_path: Path) -> None:
    """A token budget ends the attempt; a server that reports nothing is charged by length."""
    done = await act(Loop(), tmp_path, *[bash(f"echo {n}") for n in range(9)], limits={"tokens": 25})
    assert (done.stop, len(done.requests)) == (StopReason.TOKENS, 3)
    assert done.requests[1]["max_tokens"] == 14
    done = await act(Loop(), tmp_path, bash("true") | {"usage": None}, limits={"tokens": 1})
    assert (done.stop, done.acting.usage.prompt_tokens) == (StopReason.TOKENS, 0)


async def test_wall_limit_cuts_a_tool_and_ends(tmp_path: Path) -> None:
    """A command that outlives the wall is killed, and the wall is the reason."""
    done = await act(Loop(), tmp_path, bash("sleep 30"), deadline_s=0.5)
    assert done.stop is StopReason.WALL
    assert done.of(EventKind.TOOL_RESULT)[0]["timed_out"]


async def test_a_model_that_never_answers_is_a_fault_not_a_wall_limit(tmp_path: Path) -> None:
    """An attempt in which the model gave no answer at all is nobody's failure."""
    with pytest.raises(ModelUnreachable, match="no answer at all"):
        await act(Loop(), tmp_path, said("x"), deadline_s=0.5, hang=1)


async def test_a_failing_endpoint_is_a_fault_even_when_the_wall_comes_first(tmp_path: Path) -> None:
    """Cut off while waiting for the next try, the fault of the last one counts, not the wall."""
    with pytest.raises(ModelRateLimited, match="HTTP 429"):
        await act(Loop(), tmp_path, bash("true"), (429, "slow down"), deadline_s=1.0,
                  patience=Patience(tries=9, first_s=30.0))


async def test_a_model_that_became_slow_is_a_wall_limit(tmp_path: Path) -> None:
    """Where the model may just be slow, the declared time is spent and the work so far is judged."""
    done = await act(Loop(), tmp_path, bash("touch a"), deadline_s=1.0, hang=2)
    assert (done.stop, done.acting.usage.turns) == (StopReason.WALL, 1)


def test_slow_and_dead_are_told_apart_by_the_longest_answer_possible() -> None:
    """A wait is called dead only beyond three times the longest answer at the slowest speed seen, and half a minute."""
    pace, late = Pace(), TimeoutError()
    pace.answered(ModelResponse("x", completion_tokens=100), 2.0)
    pace.answered(ModelResponse("x", completion_tokens=20), 1.0)
    assert pace.verdict(299.0, 2000, late) is None
    assert isinstance(pace.verdict(301.0, 2000, late), ModelUnreachable)
    assert pace.verdict(29.0, 1, late) is None
    assert isinstance(pace.verdict(31.0, 1, late), ModelUnreachable)
    silent = Pace()
    silent.answered(ModelResponse("x"), 1.0)
    assert silent.verdict(9_999.0, 1, late) is None


async def test_tool_timeout_is_told(tmp_path: Path) -> None:
    """A command that takes too long is killed, its output so far is shown, and the loop goes on."""
    done = await act(Loop(), tmp_path, bash("echo begun; sleep 30"), said("", ("finish", {})),
                     limits={"tool_timeout_s": 0.3})
    assert done.stop is StopReason.FINISHED
    assert "begun\n[killed: no end within" in done.results[0]


async def test_the_same_call_with_the_same_result_is_stuck(tmp_path: Path) -> None:
    """The third time the model is told, the fifth ends the attempt."""
    done = await act(Loop(), tmp_path, bash("cat nothing"))
    assert (done.stop, len(done.results)) == (StopReason.STUCK, 5)
    told = [message["content"] for message in done.requests[-1]["messages"] if message["role"] == "tool"]
    assert ["times with the same result" in content for content in told] == [False, False, True, True]


async def test_the_same_call_with_new_results_is_work(tmp_path: Path) -> None:
    """Repeating a command whose result changes is not being stuck."""
    done = await act(Loop(), tmp_path, bash("echo x >> log; wc -l < log"), limits={"turns": 8})
    assert done.stop is StopReason.TURNS


async def test_full_context_shrinks_once_and_then_stops(tmp_path: Path) -> None:
    """When the server says the conversation is too long, old outputs go; when nothing is left to go, it ends."""
    full = (400, "the request exceeds the available context size")
    talk = [bash(f"seq {n} 900") for n in range(5)]
    done = await act(Loop(), tmp_path, *talk, full, said("", ("finish", {})))
    assert done.stop is StopReason.FINISHED
    sizes = [len(json.dumps(request)) for request in done.requests]
    assert sizes[6] < sizes[5] * 0.7
    assert done.of(EventKind.COMPACTION)[0]["outputs"] == ["t0001c001", "t0002c001", "t0003c001"]
    done = await act(Loop(), tmp_path, bash("ls"), full)
    assert done.stop is StopReason.CONTEXT


async def test_known_window_is_kept_without_asking_the_server(tmp_path: Path) -> None:
    """With context_tokens every request fits, task and last turns stay, and the gap is recorded."""
    answers = [bash(f"seq {n} 3000") | {"usage": None} for n in range(12)]
    done = await act(Loop(), tmp_path, *answers, limits={"turns": 12}, context_tokens=4000, max_tokens=500)
    for request in done.requests:
        written = sum(len(message["content"]) for message in request["messages"])
        assert written / 3.5 + request["max_tokens"] <= 4000
    last = done.requests[-1]["messages"]
    assert last[0] == done.requests[0]["messages"][0]
    assert last[1]["content"].startswith("Do it.\n")
    assert "t0001c001 bash: seq 0 3000 -> exit 0" in last[1]["content"]
    assert "3000" in last[-1]["content"]
    assert done.of(EventKind.COMPACTION)


async def test_a_server_without_tools_is_answered_in_text(tmp_path: Path) -> None:
    """With auto, a server that refuses tools is asked again in the text dialect."""
    refusal = (400, "\"auto\" tool choice requires --enable-auto-tool-choice")
    done = await act(Loop(), tmp_path, refusal, fenced("touch a"), said("DONE"))
    assert done.stop is StopReason.FINISHED
    assert ["tools" in request for request in done.requests] == [True, False, False]
    with pytest.raises(ModelRefused):
        await act(Loop(), tmp_path, refusal, dialect="tools")


async def test_a_refusal_after_the_first_turn_is_a_fault(tmp_path: Path) -> None:
    """Only the first request can fall back; later refusals are the model's fault and nobody's zero."""
    with pytest.raises(ModelRefused):
        await act(Loop(), tmp_path, bash("true"), (401, "key expired"))


async def test_usage_is_true_when_the_model_breaks(tmp_path: Path) -> None:
    """A fault of the model leaves the loop as such."""
    with pytest.raises(ModelGarbled):
        await act(Loop(), tmp_path, bash("true"), {"choices": []})


async def test_cut_off_answers_are_told(tmp_path: Path) -> None:
    """A block that was cut off by the token limit is not run, and the model learns why."""
    done = await act(Loop(), tmp_path, said("```bash\nrm -rf build", finish="length"), said("DONE"), dialect="text")
    assert done.results == []
    assert "cut off" in done.requests[1]["messages"][-1]["content"]
    done = await act(Loop(), tmp_path, said("", ("bash", "{\"comm"), finish="length"), said("", ("finish", {})))
    assert "cut off" in done.results[0]


async def test_without_a_model_it_says_so(tmp_path: Path) -> None:
    """The loop without a model is the caller's mistake."""
    with pytest.raises(UsageError, match="--model"):
        await act(Loop(), tmp_path)
    with pytest.raises(UsageError, match="unknown dialect 'esperanto'"):
        await act(Loop(), tmp_path, said("x"), dialect="esperanto")


async def test_intent_stands_before_result_and_ids_are_unique(tmp_path: Path) -> None:
    """Every call has its intent in the log before its result, under an id that occurs once."""
    done = await act(Loop(), tmp_path, *[said("", ("bash", {"command": f"echo {n}"}), ("nonsense", "{"))
                                         for n in range(3)], said("", ("finish", {})))
    order = [(event.kind, event.data["call"]) for event in done.events
             if event.kind in (EventKind.TOOL_CALL, EventKind.TOOL_RESULT)]
    ids = [call for kind, call in order if kind is EventKind.TOOL_CALL]
    assert len(set(ids)) == len(ids) == 7
    assert order == [(kind, call) for call in ids for kind in (EventKind.TOOL_CALL, EventKind.TOOL_RESULT)]


async def test_non_utf8_and_huge_output_are_bounded_and_marked(tmp_path: Path) -> None:
    """Output that is no text, or far too much of it, reaches model and log as clipped, valid text."""
    done = await act(Loop(), tmp_path, bash("printf '\\xff\\x00ok'; head -c 5000000 /dev/zero | tr '\\0' x"),
                     said("", ("finish", {})), box=LocalBox(tmp_path / "box"))
    shown = done.results[0]
    assert shown.startswith("\ufffd\u2400ok")
    assert 'the middle left out; read_output("t0001c001", offset=10666, limit)]' in shown
    assert len(shown) < 17_000
    assert done.of(EventKind.TOOL_RESULT)[0]["truncated"]
