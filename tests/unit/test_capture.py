"""Capture adapters against answers as the servers gave them, and the validation of what they tell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from woodshed.errors import ModelRefused
from woodshed.gateway.capture import SERVERS, kind, level, vocabulary
from woodshed.gateway.capture.probe import Ask, Complete, probe
from woodshed.model.rollout import CaptureLevel
from woodshed.model.tokens import Tokens, flaws

VLLM = {"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "prompt_token_ids": [151644, 8948, 198],
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ls"}, "finish_reason": "stop",
                     "token_ids": [4730, 151645], "logprobs": {"content": [
                         {"token": "ls", "logprob": -0.25, "bytes": [108, 115], "top_logprobs": []},
                         {"token": "<|im_end|>", "logprob": -0.0625, "bytes": None, "top_logprobs": []}]}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}
SGLANG = {"id": "1", "object": "chat.completion", "model": "m",
          "choices": [{"index": 0, "message": {"role": "assistant", "content": "ls"}, "finish_reason": "stop",
                       "prompt_token_ids": [151644, 8948, 198], "response_token_ids": [4730, 151645],
                       "logprobs": {"content": [{"token": "ls", "logprob": -0.25}, {"token": "", "logprob": -0.0625}]},
                       "meta_info": {"weight_version": "7", "output_token_logprobs": [
                           [-0.25, 4730, None], [-0.0625, 151645, None]]}}],
          "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
LLAMA = {"id": "1", "object": "chat.completion", "model": "m",
         "choices": [{"index": 0, "message": {"role": "assistant", "content": "ls"}, "finish_reason": "stop",
                      "logprobs": {"content": [
                          {"id": 4730, "token": "ls", "bytes": [108, 115], "logprob": -0.25, "top_logprobs": [{}]},
                          {"id": 151645, "token": "", "bytes": [], "logprob": -0.0625, "top_logprobs": [{}]}]}}],
         "__verbose": {"index": 0, "content": "ls", "tokens": [4730, 151645], "prompt": "<|im_start|>system\n"},
         "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
WHOLE = Tokens((151644, 8948, 198), (4730, 151645), (-0.25, -0.0625))


def test_each_server_is_read_in_its_own_way() -> None:
    """Ids and logprobs of one answer are found wherever vLLM, SGLang and llama.cpp put them."""
    assert SERVERS["vllm"].read(VLLM) == WHOLE
    found = SERVERS["sglang"].read(SGLANG)
    assert (found.whole, found.logprobs, found.policy_version) == (WHOLE.whole, WHOLE.logprobs, "7")
    llama = SERVERS["llama.cpp"].read(LLAMA)
    assert (llama.prompt, llama.completion, llama.logprobs) == (None, WHOLE.completion, WHOLE.logprobs)
    assert llama.prompt_text == "<|im_start|>system\n"
    assert SERVERS["plain"].read(VLLM) == Tokens()


def test_the_size_of_the_vocabulary_is_the_servers_word() -> None:
    """llama.cpp tells it of each model in its list; of several the one that is asked counts, and nonsense is none."""
    two = {"data": [{"id": "a", "meta": {"n_vocab": 5}}, {"id": "b", "meta": {"n_vocab": 7}}]}
    assert [vocabulary(two, name) for name in ("a", "b", "c")] == [5, 7, None]
    assert vocabulary({"data": two["data"][:1]}, "whatever it is called") == 5
    for told in (None, {}, {"data": [3]}, *({"data": [{"meta": {"n_vocab": odd}}]} for odd in (True, -1, "9"))):
        assert vocabulary(told, "a") is None


def test_an_answer_that_spans_a_swap_is_mixed() -> None:
    """vLLM's list of versions tells with which weights an answer began and ended; one version is no mixture."""
    for told, found in (({"weight_versions": [7, 8]}, ("7", "8")), ({"weight_versions": ["7", "7"]}, ("7", None)),
                        ({"weight_version": "9"}, ("9", None)), ({}, (None, None))):
        tokens = SERVERS["vllm"].read(VLLM | told)
        assert (tokens.policy_version, tokens.policy_after) == found


def test_llamacpp_is_asked_for_the_ids_of_its_prompt() -> None:
    """The further question says that special tokens stand in the text; its answer is a list of ids."""
    server = SERVERS["llama.cpp"]
    assert server.tokenize is not None
    assert server.tokenized is not None
    path, body = server.tokenize("<|im_start|>")
    assert (path, body["parse_special"], body["add_special"]) == ("/tokenize", True, False)
    assert server.tokenized({"tokens": [1, 2]}) == (1, 2)
    assert server.tokenized({"tokens": ["a"]}) is None


@pytest.mark.parametrize("name", sorted(SERVERS))
@pytest.mark.parametrize("hostile", [{}, {"choices": 3}, {"choices": [None]},
                                     {"choices": [{"logprobs": {"content": [1]}}]},
                                     {"prompt_token_ids": "1", "choices": [{"token_ids": [True], "meta_info": []}]}],
                         ids=range(5))
def test_an_answer_of_any_shape_is_read(name: str, hostile: dict[str, Any]) -> None:
    """What is no list of ids counts as not told; nothing is raised."""
    assert level(SERVERS[name].read(hostile)) is CaptureLevel.TEXT


def test_the_level_is_what_was_told() -> None:
    """A level speaks of the answer and not of the request; flawed tokens are no better than text."""
    assert level(WHOLE) is CaptureLevel.LOGPROBS
    assert level(Tokens(WHOLE.prompt, WHOLE.completion)) is CaptureLevel.TOKENS
    assert level(Tokens(None, WHOLE.completion)) is CaptureLevel.TEXT
    assert level(Tokens(WHOLE.prompt, WHOLE.completion, (0.5, -1.0))) is CaptureLevel.TEXT


def test_servers_are_known_by_their_models() -> None:
    """The owner in the list of models tells the server; an unknown one is plain."""
    assert kind({"data": [{"id": "m", "owned_by": "vllm"}]}) == "vllm"
    assert kind({"data": [{"id": "m", "owned_by": "llamacpp"}]}) == "llama.cpp"
    assert kind({"data": [{"id": "m", "owned_by": "sglang"}]}) == "sglang"
    assert kind({"data": [{"owned_by": ["vllm"]}]}) == kind({"data": "x"}) == kind(None) == "plain"


@pytest.mark.parametrize(("tokens", "word"), [
    (Tokens((), (1,), (-1.0,)), "no ids"),
    (Tokens((1,), (), ()), "no ids"),
    (Tokens((1,), (100,), (-1.0,)), "outside the vocabulary"),
    (Tokens((-1,), (1,), (-1.0,)), "outside the vocabulary"),
    (Tokens((1,), (1, 2), (-1.0,)), "1 logprobs for 2 ids"),
    (Tokens((1,), (1,), (0.1,)), "zero or less"),
    (Tokens((1,), (1,), (math.nan,)), "zero or less"),
    (Tokens((1,), (1,), (-math.inf,)), "zero or less"),
], ids=range(8))
def test_what_does_not_fit_is_told(tokens: Tokens, word: str) -> None:
    """Each thing that a trainer could not rely upon is a flaw with words of its own."""
    assert word in " ".join(flaws(tokens, vocabulary=100))


def test_counts_of_the_server_are_held_against_its_ids() -> None:
    """A usage that counts otherwise is a flaw; one that was not told is none."""
    assert flaws(WHOLE, vocabulary=151646, prompt_tokens=3, completion_tokens=2) == ()
    assert flaws(WHOLE, prompt_tokens=0) == ()
    assert "the server counted 4" in flaws(WHOLE, prompt_tokens=4)[0]


def answers(
    models: str, answer: dict[str, Any], tokens: list[int] | None = None
) -> tuple[tuple[Ask, Complete], list[tuple[str, Any]]]:
    """A server that says so, and what it was asked."""
    asked: list[tuple[str, Any]] = []

    async def ask(path: str, body: Mapping[str, Any] | None) -> Any:
        asked.append((path, body))
        return {"/v1/models": {"data": [{"id": "m", "owned_by": models}]}, "/tokenize": {"tokens": tokens}}[path]

    async def complete(body: Mapping[str, Any]) -> Any:
        asked.append(("complete", body))
        return answer

    return (ask, complete), asked


async def test_a_server_is_probed_for_what_it_really_tells() -> None:
    """The level is that of its answer; one that tells less than its kind can, or counts otherwise, has a lower one."""
    ways, asked = answers("vllm", VLLM)
    found = await probe(*ways, "m")
    assert (found.name, found.found) == ("vllm", CaptureLevel.LOGPROBS)
    assert asked[1][1]["return_token_ids"] is True
    older = {**VLLM, "prompt_token_ids": None}
    assert (await probe(*answers("vllm", older)[0], "m")).found is CaptureLevel.TEXT
    disagreeing = {**VLLM, "usage": {"prompt_tokens": 4, "completion_tokens": 2}}
    assert (await probe(*answers("vllm", disagreeing)[0], "m")).found is CaptureLevel.TEXT
    assert (await probe(*answers("someone", VLLM)[0], "m")).name == "plain"
    assert (await probe(*answers("someone", VLLM)[0], "m", server="vllm")).found is CaptureLevel.LOGPROBS


async def test_llamacpp_is_probed_by_two_questions() -> None:
    """The ids of the prompt come from its tokenizer, and are held against its count."""
    ways, asked = answers("llamacpp", LLAMA, [1, 2, 3])
    found = await probe(*ways, "m")
    assert found.found is CaptureLevel.LOGPROBS
    assert [path for path, _ in asked] == ["/v1/models", "complete", "/tokenize"]
    assert (await found.read(LLAMA, ways[0])).prompt == (1, 2, 3)
    assert (await probe(*answers("llamacpp", LLAMA, [1, 2])[0], "m")).found is CaptureLevel.TEXT


async def test_what_a_caller_asks_itself_is_kept() -> None:
    """Fields of ours never take the place of the caller's own."""
    found = await probe(*answers("vllm", VLLM)[0], "m")
    sent = found.body({"logprobs": True, "top_logprobs": 5, "x": 1})
    assert {name: sent[name] for name in ("return_token_ids", "logprobs", "top_logprobs", "x")} == {
        "return_token_ids": True, "logprobs": True, "top_logprobs": 5, "x": 1}


@pytest.mark.parametrize("name", sorted(SERVERS))
async def test_the_sampler_is_neutral_but_for_what_the_config_says(name: str) -> None:
    """What cuts or bends the distribution is switched off in each server's words, whatever a program asked for."""
    found = await probe(*answers("someone", VLLM)[0], "m", server=name)
    sent = found.body({"temperature": 0.0, "top_p": 0.5, "max_tokens": 9}, said=("top_p",))
    assert (sent["temperature"], sent["top_p"], sent["max_tokens"]) == (1.0, 0.5, 9)
    off = {"sglang": -1, "vllm": 0, "llama.cpp": 0}.get(name)
    assert (sent.get("top_k"), sent.get("min_p")) == (off, None if off is None else 0.0)


async def test_a_server_that_refuses_the_question_is_plain() -> None:
    """An older version that knows no such fields is asked without them; one that was named is not taken for another."""
    (ask, _), _ = answers("vllm", VLLM)

    async def complete(body: Mapping[str, Any]) -> Any:
        if "return_token_ids" in body:
            raise ModelRefused("extra fields are not permitted")
        return VLLM

    found = await probe(ask, complete, "m")
    assert (found.name, found.found) == ("plain", CaptureLevel.TEXT)
    with pytest.raises(ModelRefused):
        await probe(ask, complete, "m", server="vllm")
