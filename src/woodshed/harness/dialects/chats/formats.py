"""The families' chat formats that are turns between marks and no more.

Sources: the chat templates of the models, as kept in TRL's trl/chat_templates (Qwen 2.5, Qwen 3.5, GLM-4.5, Llama 3.1,
Gemma 4, LFM2, DeepSeek V3), in llama.cpp's models/templates (Kimi K2 Thinking, DeepSeek V3.1, MiniMax M2) and in
vLLM's examples (Llama 4); encoding_dsv32.py and encoding_dsv4.py of DeepSeek, as kept in vLLM; Google's page
"FunctionGemma formatting and best practices". Where a template lets a model think or not, the comment says which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from woodshed.harness.dialects.chats.turns import Opening, Turns, name_of
from woodshed.harness.dialects.families import FAMILIES
from woodshed.harness.dialects.families.family import as_json
from woodshed.harness.dialects.families.gemma import FUNCTIONGEMMA, GEMMA, Gemma
from woodshed.interfaces import ToolSpec

_IM = ("<|im_start|>", "<|im_end|>")
_KIMI_ID = re.compile(r"<\|tool_call_begin\|>\s*([^<\s]+)")


def _manual(family: str, start: str, end: str, between: str = "\n\n") -> Opening:
    """The system prompt with the family's manual after it."""
    def opening(system: str, tools: Sequence[ToolSpec]) -> str:
        return start + between.join([system, *([FAMILIES[family].manual(tools)] if tools else [])]) + end

    return opening


def _between(before: str, after: str) -> Callable[[str, str, int], str]:
    return lambda content, answer, index: f"{before}{content}{after}"


def _qwen(system: str, tools: Sequence[ToolSpec]) -> str:
    """Qwen 3.5 is told of tools first."""
    told = [FAMILIES["qwen-coder"].manual(tools)] if tools else []
    return "<|im_start|>system\n" + "\n\n".join([*told, system]) + "<|im_end|>\n"


def _glm(system: str, tools: Sequence[ToolSpec]) -> str:
    told = f"<|system|>\n{FAMILIES['glm'].manual(tools)}" if tools else ""
    return f"[gMASK]<sop>{told}<|system|>\n{system}"


def _kimi(system: str, tools: Sequence[ToolSpec]) -> str:
    declared = json.dumps([as_json(tool) for tool in tools], ensure_ascii=False)
    told = f"<|im_system|>tool_declare<|im_middle|>{declared}<|im_end|>" if tools else ""
    return f"{told}<|im_system|>system<|im_middle|>{system}<|im_end|>"


def _kimi_result(content: str, answer: str, index: int) -> str:
    """Under the id that the model gave the call."""
    ids = _KIMI_ID.findall(answer)
    ident = ids[index] if index < len(ids) else f"functions.{name_of('kimi', answer, index)}:{index}"
    return f"<|im_system|>tool<|im_middle|>## Return of {ident}\n{content}<|im_end|>"


def _llama(system: str, tools: Sequence[ToolSpec]) -> str:
    """The dates are those that the template has where nobody gives it any."""
    ipython = "Environment: ipython\n" if tools else ""
    return (f"<|start_header_id|>system<|end_header_id|>\n\n{ipython}Cutting Knowledge Date: December 2023\n"
            f"Today Date: 26 Jul 2024\n\n{system}<|eot_id|>")


def _llama_told(system: str, tools: Sequence[ToolSpec]) -> str:
    """No space after its second sentence: neither has the template."""
    told = "\n\n".join(json.dumps(as_json(tool), indent=4, ensure_ascii=False) for tool in tools)
    return ("Given the following functions, please respond with a JSON for a function call with its proper arguments "
            'that best answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": '
            f"dictionary of argument name and its value}}.Do not use variables.\n\n{told}\n\n") if tools else ""


def _llama4(system: str, tools: Sequence[ToolSpec]) -> str:
    declared = json.dumps([as_json(tool) for tool in tools], indent=4, ensure_ascii=False)
    told = ("\nHere is a list of functions in JSON format that you can invoke. Use exact format: [func_name1("
            f"param1=value1, param2=value2), func_name2(...)]\n{declared}\n") if tools else ""
    return f"<|header_start|>system<|header_end|>\n\n{system}{told}<|eot|>"


def _lfm(system: str, tools: Sequence[ToolSpec]) -> str:
    declared = ", ".join(json.dumps(as_json(tool), ensure_ascii=False) for tool in tools)
    told = f"\nList of tools: <|tool_list_start|>[{declared}]<|tool_list_end|>" if tools else ""
    return f"<|im_start|>system\n{system}{told}<|im_end|>\n"


def _gemma(family: Gemma, start: str, end: str, trigger: str = "") -> Opening:
    def opening(system: str, tools: Sequence[ToolSpec]) -> str:
        return f"{start}{system}{trigger if tools else ''}{''.join(family.declared(tool) for tool in tools)}{end}"

    return opening


def _gemma_result(family: Gemma) -> Callable[[str, str, int], str]:
    def result(content: str, answer: str, index: int) -> str:
        before, after = family.response
        return (f"{before}response:{name_of(family.name, answer, index)}{{value:{family.quote}{content}{family.quote}}}"
                f"{after}")

    return result


def _deepseek(system: str, tools: Sequence[ToolSpec]) -> str:
    """V3's and V3.1's templates leave it to whoever writes the system prompt to tell of tools."""
    return system


def _quoted(before: str, after: str) -> Callable[[str, str, int], str]:
    """As JSON in quotes: templates of Llama dump a result, which to them is a sequence."""
    return lambda content, answer, index: f"{before}{json.dumps(content, ensure_ascii=False)}{after}"


_V3_MARKS = (
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>",
    *(f"<｜tool▁{what}▁{end}｜>" for what in ("calls", "call", "outputs", "output") for end in ("begin", "end")),
    "<｜tool▁sep｜>")
_DSML_MARKS = (
    *_V3_MARKS, "<｜DSML｜", "</｜DSML｜", "<function_results>", "</function_results>", "<result>", "</result>",
    "<tool_result>", "</tool_result>", "<｜latest_reminder｜>")
_OUTPUT = ("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>")
_TOOLS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_ENDS = ("<|im_end|>", "<|endoftext|>")
_SENTENCE = ("<｜end▁of▁sentence｜>",)
_HEAD, _HEAD4 = ("<|start_header_id|>", "<|end_header_id|>\n\n"), ("<|header_start|>", "<|header_end|>\n\n")
_LLAMA_MARKS = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|start_header_id|>",
                "<|end_header_id|>", "<|python_tag|>")
_LLAMA4_MARKS = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot|>", "<|eom|>", "<|header_start|>", "<|header_end|>",
                 "<|python_start|>", "<|python_end|>")
_KIMI_MARKS = ("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>", "<|tool_call_begin|>",
               "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_begin|>",
               "<|tool_calls_section_end|>", "[BOS]", "[EOS]", "[EOT]")
_GEMMA_MARKS = ("<bos>", "<eos>", "<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
                "<tool_response|>", "<|tool>", "<tool|>", "<|channel>", "<channel|>", '<|"|>')
_FUNCTIONGEMMA_MARKS = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<escape>", *(
    f"<{end}_function_{what}>" for end in ("start", "end") for what in ("declaration", "call", "response")))

HERMES = Turns(
    "hermes", _ENDS, _manual("hermes", "<|im_start|>system\n", "<|im_end|>\n"),
    ("<|im_start|>user\n", "<|im_end|>\n"), ("<|im_start|>assistant\n", "<|im_end|>\n"),
    ("<|im_start|>user\n", "\n", "<|im_end|>\n"), _between("<tool_response>\n", "\n</tool_response>"),
    (*_IM, "<|endoftext|>", *_TOOLS))
QWEN_CODER = Turns(
    "qwen-coder", _ENDS, _qwen, HERMES.user, HERMES.answer, HERMES.results, HERMES.result,
    (*HERMES.marks, "<function=", "</function>", "<parameter=", "</parameter>"))  # it thinks if it begins to
DEEPSEEK_V3 = Turns(
    "deepseek-v3", _SENTENCE, _deepseek, ("<｜User｜>", ""), ("<｜Assistant｜>", _SENTENCE[0]),
    ("<｜tool▁outputs▁begin｜>", "", "<｜tool▁outputs▁end｜>"), _between(*_OUTPUT), _V3_MARKS, again="")
DEEPSEEK_V31 = Turns(  # not thinking, as the template is without being asked
    "deepseek-v3.1", _SENTENCE, _deepseek, ("<｜User｜>", ""), ("<｜Assistant｜></think>", _SENTENCE[0]), ("", "", ""),
    _between(*_OUTPUT), _V3_MARKS, again="")
DEEPSEEK_V32 = Turns(  # thinking
    "deepseek-v3.2", _SENTENCE, _manual("deepseek-v3.2", "", ""), ("<｜User｜>", ""), ("<｜Assistant｜>", _SENTENCE[0]),
    ("\n\n<function_results>\n", "\n", "\n</function_results>\n\n"), _between("<result>", "</result>"), _DSML_MARKS,
    opened="<think>", again="")
DEEPSEEK_V4 = Turns(  # thinking; results are a user's turn
    "deepseek-v4", _SENTENCE, _manual("deepseek-v4", "", ""), ("<｜User｜>", ""), ("<｜Assistant｜>", _SENTENCE[0]),
    ("<｜User｜>", "\n\n", ""), _between("<tool_result>", "</tool_result>"), _DSML_MARKS, opened="<think>",
    joined="\n\n")
LLAMA_JSON = Turns(
    "llama-json", ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"), _llama, (f"{_HEAD[0]}user{_HEAD[1]}", "<|eot_id|>"),
    (f"{_HEAD[0]}assistant{_HEAD[1]}", "<|eot_id|>"), ("", "", ""),
    _quoted(f"{_HEAD[0]}ipython{_HEAD[1]}", "<|eot_id|>"), _LLAMA_MARKS,
    told=("first", lambda system, tools: "", _llama_told))
LLAMA_PYTHONIC = Turns(
    "llama-pythonic", ("<|eot|>", "<|eom|>", "<|end_of_text|>"), _llama4, (f"{_HEAD4[0]}user{_HEAD4[1]}", "<|eot|>"),
    (f"{_HEAD4[0]}assistant{_HEAD4[1]}", "<|eot|>"), ("", "", ""),
    _quoted(f"{_HEAD4[0]}ipython{_HEAD4[1]}", "<|eot|>"), _LLAMA4_MARKS)
GLM = Turns(  # it thinks if it begins to
    "glm", ("<|user|>", "<|observation|>", "<|endoftext|>"), _glm, ("<|user|>\n", ""), ("<|assistant|>", ""),
    ("<|observation|>\n", "\n", ""), _between("<tool_response>\n", "\n</tool_response>"),
    ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>", *_TOOLS,
     "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"))
KIMI = Turns(
    "kimi", ("<|im_end|>", "[EOS]"), _kimi, ("<|im_user|>user<|im_middle|>", "<|im_end|>"),
    ("<|im_assistant|>assistant<|im_middle|>", "<|im_end|>"), ("", "", ""), _kimi_result, _KIMI_MARKS)
FUNCTIONGEMMA_CHAT = Turns(  # what calls is no end of the model's turn
    "functiongemma", ("<end_of_turn>", "<start_function_response>"),
    _gemma(FUNCTIONGEMMA, "<start_of_turn>developer\n", "<end_of_turn>\n",
           "\nYou are a model that can do function calling with the following functions"),
    ("<start_of_turn>user\n", "<end_of_turn>\n"), ("<start_of_turn>model\n", "<end_of_turn>\n"), ("", "", ""),
    _gemma_result(FUNCTIONGEMMA), _FUNCTIONGEMMA_MARKS, again="", held="")
GEMMA_CHAT = Turns(  # likewise; not thinking, as the template is without being asked
    "gemma", ("<turn|>", "<|tool_response>"), _gemma(GEMMA, "<|turn>system\n", "<turn|>\n"),
    ("<|turn>user\n", "<turn|>\n"), ("<|turn>model\n", "<turn|>\n"), ("", "", ""), _gemma_result(GEMMA), _GEMMA_MARKS,
    again="", held="")
MINIMAX = Turns(  # it always thinks
    "minimax", ("[e~[",), _manual("minimax", "]~!b[]~b]system\n", "[e~[\n"), ("]~b]user\n", "[e~[\n"),
    ("]~b]ai\n", "[e~[\n"), ("]~b]tool\n", "\n", "[e~[\n"), _between("<response>", "</response>"),
    ("]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>", "<invoke ", "</invoke>", "<response>",
     "</response>"), opened="<think>\n")
LFM2 = Turns(
    "lfm2", _ENDS, _lfm, HERMES.user, HERMES.answer, ("", "", ""),
    _between("<|im_start|>tool\n<|tool_response_start|>", "<|tool_response_end|><|im_end|>\n"),
    (*_IM, "<|endoftext|>", *(f"<|tool_{what}_{end}|>" for what in ("call", "response", "list")
                              for end in ("start", "end"))))

ALL: Mapping[str, Turns] = {each.name: each for each in (
    HERMES, QWEN_CODER, DEEPSEEK_V3, DEEPSEEK_V31, DEEPSEEK_V32, DEEPSEEK_V4, LLAMA_JSON, LLAMA_PYTHONIC, GLM, KIMI,
    FUNCTIONGEMMA_CHAT, GEMMA_CHAT, MINIMAX, LFM2)}
