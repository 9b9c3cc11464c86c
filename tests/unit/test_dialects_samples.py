"""Answers in the families' own formats, as their documentation and the tests of other parsers show them."""

# ruff: noqa: E501  (samples are kept as they were published)
from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from woodshed.harness.dialects import named
from woodshed.harness.dialects.families import FAMILIES
from woodshed.harness.dialects.hearing import hear
from woodshed.harness.dialects.typed import Types
from woodshed.interfaces import ModelResponse, ToolSpec


def tool(name: str, **properties: str) -> ToolSpec:
    return ToolSpec(name, f"Does {name}.", {"type": "object", "properties": {
        key: {"type": kind} for key, kind in properties.items()}})


TOOLS = [
    tool("get_weather", city="string", location="string", unit="string", metric="string", date="string"),
    tool("get_current_weather", city="string", state="string", unit="string", location="string"),
    tool("calculate_area", shape="string", dimensions="object", precision="integer"),
    tool("search_web", query_tag="array", query_list="array"),
    tool("test_types", int_param="integer", float_param="number", bool_param="boolean", str_param="string",
         obj_param="object"),
    tool("execute_command", command="string"), tool("toggle", enabled="boolean", count="integer"),
]
Calls = list[tuple[str, dict[str, Any]]]


class Sample(NamedTuple):
    family: str
    source: str
    text: str
    calls: Calls
    said: str = ""


TOKYO = {"city": "Tokyo", "unit": "celsius"}
WEATHER = ("get_current_weather", {"city": "San Francisco", "state": "CA", "unit": "celsius"})
SAMPLES = [
    Sample("hermes", "Qwen docs, function calling (Qwen2.5)", '<tool_call>\n{"name": "get_current_temperature", '
           '"arguments": {"location": "San Francisco, CA, USA"}}\n</tool_call>\n<tool_call>\n{"name": '
           '"get_temperature_date", "arguments": {"location": "San Francisco, CA, USA", "date": "2024-10-01"}}\n'
           "</tool_call>", [("get_current_temperature", {"location": "San Francisco, CA, USA"}),
                            ("get_temperature_date", {"location": "San Francisco, CA, USA", "date": "2024-10-01"})]),
    Sample("hermes", "NousResearch/Hermes-2-Pro, model card (arguments first)", '<tool_call>\n{"arguments": {"symbol": '
           '"TSLA"}, "name": "get_stock_fundamentals"}\n</tool_call>', [("get_stock_fundamentals", {"symbol": "TSLA"})]),
    Sample("hermes", "vLLM, test_hermes_tool_parser (the closing tag is missing)",
           '<tool_call>\n{"name": "final_answer", "arguments": {"trigger": true}}', [("final_answer", {"trigger": True})]),
    Sample("hermes", "vLLM, test_hermes_tool_parser (arguments in a string)", '<tool_call>\n{"name": "get_db_config", '
           '"arguments": "{\\"param\\": \\"max_connections\\"}"}\n</tool_call>', [("get_db_config", {"param": "max_connections"})]),
    Sample("hermes", "vLLM, test_hermes_tool_parser", "Sure, let me check the weather."
           '<tool_call>{"name": "get_weather", "arguments": {"city": "NYC"}}</tool_call>',
           [("get_weather", {"city": "NYC"})], "Sure, let me check the weather."),
    Sample("qwen-coder", "vLLM, test_qwen3coder_tool_parser", "Sure! Let me check the weather for you.<tool_call>\n"
           "<function=get_current_weather>\n<parameter=city>\nDallas\n</parameter>\n<parameter=state>\nTX\n</parameter>\n"
           "<parameter=unit>\nfahrenheit\n</parameter>\n</function>\n</tool_call>",
           [("get_current_weather", {"city": "Dallas", "state": "TX", "unit": "fahrenheit"})],
           "Sure! Let me check the weather for you."),
    Sample("qwen-coder", "vLLM, test_qwen3coder_tool_parser", "<tool_call>\n<function=calculate_area>\n<parameter=shape>\n"
           'rectangle\n</parameter>\n<parameter=dimensions>\n{"width": 10, \n "height": 20}\n</parameter>\n'
           "<parameter=precision>\n2\n</parameter>\n</function>\n</tool_call>",
           [("calculate_area", {"shape": "rectangle", "dimensions": {"width": 10, "height": 20}, "precision": 2})]),
    Sample("qwen-coder", "vLLM, test_qwen3coder_tool_parser (tags missing)", "<function=get_current_weather>\n"
           "<parameter=city>\nDallas\n</parameter>\n<parameter=state>\nTX\n</parameter>\n</function>",
           [("get_current_weather", {"city": "Dallas", "state": "TX"})]),
    Sample("qwen-coder", "vLLM, test_qwen3coder_tool_parser", "<tool_call>\n<function=test_types>\n<parameter=int_param>\n"
           "42\n</parameter>\n<parameter=float_param>\n3.14\n</parameter>\n<parameter=bool_param>\ntrue\n</parameter>\n"
           '<parameter=str_param>\nhello world\n</parameter>\n<parameter=obj_param>\n{"key": "value"}\n</parameter>\n'
           "</function>\n</tool_call>", [("test_types", {
               "int_param": 42, "float_param": 3.14, "bool_param": True, "str_param": "hello world",
               "obj_param": {"key": "value"}})]),
    Sample("deepseek-v3", "vLLM, test_deepseekv3_tool_parser", "Let me check the weather for you.<｜tool▁calls▁begin｜>"
           '<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Tokyo", "unit": "celsius"}\n```'
           "<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search_hotels\n```json\n{\"location\": \"Tokyo\", "
           "\"check_in\": \"2025-01-15\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
           [("get_weather", TOKYO), ("search_hotels", {"location": "Tokyo", "check_in": "2025-01-15"})],
           "Let me check the weather for you."),
    Sample("deepseek-v3", "vLLM, test_deepseekv3_tool_parser", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"
           '<｜tool▁sep｜>send_message\n```json\n{"text": "He said \\"hello\\"", "path": "C:\\\\Users\\\\file", '
           '"newline": "line1\\nline2"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
           [("send_message", {"text": 'He said "hello"', "path": "C:\\Users\\file", "newline": "line1\nline2"})]),
    Sample("deepseek-v3.1", "vLLM, test_deepseekv31_tool_parser", "normal text<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>foo"
           '<｜tool▁sep｜>{"x":1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>', [("foo", {"x": 1})], "normal text"),
    Sample("deepseek-v3.2", "vLLM, test_deepseekv32_tool_parser", '<｜DSML｜function_calls>\n<｜DSML｜invoke name='
           '"get_weather">\n<｜DSML｜parameter name="location" string="true">SF</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
           '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="location" string="true">NYC</｜DSML｜parameter>\n'
           "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
           [("get_weather", {"location": "SF"}), ("get_weather", {"location": "NYC"})]),
    Sample("deepseek-v3.2", "vLLM, test_deepseekv32_tool_parser", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="toggle">\n'
           '<｜DSML｜parameter name="enabled" string="false">true</｜DSML｜parameter>\n<｜DSML｜parameter name="count" '
           'string="false">42</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
           [("toggle", {"enabled": True, "count": 42})]),
    Sample("deepseek-v4", "DeepSeek V4, encoding (as ports of it show)", "<think>\nThe user is asking about weather.\n"
           '</think>\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="search">\n<｜DSML｜parameter name="query" string="true">'
           "Paris weather today</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
           [("search", {"query": "Paris weather today"})]),
    Sample("llama-json", "vLLM, test_llama3_json_tool_parser", 'Here is the result: {"name": "getOpenIncidentsTool", '
           '"parameters": {}} Would you like to know more?', [("getOpenIncidentsTool", {})], "Here is the result:"),
    Sample("llama-json", "vLLM, test_llama3_json_tool_parser", '{"name": "searchTool", "parameters": {"query": "test1"}} ; '
           '{"name": "getOpenIncidentsTool", "parameters": {}} ; {"name": "searchTool", "arguments": {"query": "test2"}}',
           [("searchTool", {"query": "test1"}), ("getOpenIncidentsTool", {}), ("searchTool", {"query": "test2"})]),
    Sample("llama-json", "Llama 3.1 prompt format", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Tokyo"}}'
           "<|eom_id|>", [("get_weather", {"city": "Tokyo"})]),
    Sample("llama-json", "vLLM, test_llama3_json_tool_parser", '{"parameters": {}}', [], '{"parameters": {}}'),
    Sample("llama-json", "vLLM, test_llama3_json_tool_parser", '{"name": "toolWithoutParams"}', [],
           '{"name": "toolWithoutParams"}'),
    Sample("llama-pythonic", "Llama 3.2 prompt format", "[get_weather(city='San Francisco', metric='celsius'), "
           "get_weather(city='Seattle', metric='celsius')]", [
               ("get_weather", {"city": "San Francisco", "metric": "celsius"}),
               ("get_weather", {"city": "Seattle", "metric": "celsius"})]),
    Sample("llama-pythonic", "vLLM, test_pythonic_tool_parser", "[register_user(name='John Doe', age=37, address={'city': "
           "'San Francisco', 'state': 'CA'}, role=None, passed_test=True, aliases=['John', 'Johnny']), get_weather()]",
           [("register_user", {"name": "John Doe", "age": 37, "address": {"city": "San Francisco", "state": "CA"},
                               "role": None, "passed_test": True, "aliases": ["John", "Johnny"]}), ("get_weather", {})]),
    Sample("llama-pythonic", "vLLM, test_pythonic_tool_parser", r"""[get_weather(city='Martha\'s Vineyard', """
           r"""metric='\"cool units\"')]""", [("get_weather", {"city": "Martha's Vineyard", "metric": '"cool units"'})]),
    Sample("llama-pythonic", "vLLM, test_llama4_pythonic_tool_parser", "<|python_start|>[get_weather(city='LA', "
           "metric='C')]<|python_end|>", [("get_weather", {"city": "LA", "metric": "C"})]),
    Sample("llama-pythonic", "vLLM, test_olmo3_tool_parser", "<function_calls>get_weather(city='San Francisco', "
           "metric='celsius')\nget_weather()</function_calls>",
           [("get_weather", {"city": "San Francisco", "metric": "celsius"}), ("get_weather", {})]),
    Sample("llama-pythonic", "a list that is none of calls", "[1] See the manual.", [], "[1] See the manual."),
    Sample("mistral", "vLLM, test_mistral_tool_parser (before v11)", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 3.5, '
           '"b": 4}}, {"name": "get_current_weather", "arguments":{"city": "San Francisco", "state": "CA", "unit": '
           '"celsius"}}]', [("add", {"a": 3.5, "b": 4}), WEATHER]),
    Sample("mistral", "vLLM, test_mistral_tool_parser (before v11)", '[TOOL_CALLS] [{"arguments":{"name": "John Doe"}, '
           '"name": "get_age"}]\nextra trailing data', [("get_age", {"name": "John Doe"})]),
    Sample("mistral-v11", "vLLM, test_mistral_tool_parser (v11)", 'Hello[TOOL_CALLS]add{"a": 3.5, "b": 4}[TOOL_CALLS]'
           'multiply{"a": 3, "b": 6}', [("add", {"a": 3.5, "b": 4}), ("multiply", {"a": 3, "b": 6})], "Hello"),
    Sample("mistral-v11", "mistral-common, tokenizer v11", '[TOOL_CALLS]add[CALL_ID]hjS62KoUm[ARGS]{"a": 3.5, "b": 4}',
           [("add", {"a": 3.5, "b": 4})]),
    Sample("glm", "vLLM, test_glm47_moe_tool_parser", "Checking.<tool_call>get_weather<arg_key>city</arg_key><arg_value>"
           "Beijing</arg_value></tool_call><tool_call>get_current_date</tool_call>",
           [("get_weather", {"city": "Beijing"}), ("get_current_date", {})], "Checking."),
    Sample("glm", "vLLM, test_glm4_moe_tool_parser", "<tool_call>get_current_weather\n<arg_key>city</arg_key>\n"
           "<arg_value>Dallas</arg_value>\n<arg_key>state</arg_key>\n<arg_value>TX</arg_value>\n</tool_call>",
           [("get_current_weather", {"city": "Dallas", "state": "TX"})]),
    Sample("kimi", "vLLM, test_kimi_k2_tool_parser", "Compare weather. <|tool_calls_section_begin|><|tool_call_begin|>"
           'functions.get_weather:0 <|tool_call_argument_begin|>{"city": "Beijing"}<|tool_call_end|><|tool_call_begin|>'
           'get_weather:1 <|tool_call_argument_begin|>{"city": "Shanghai"}<|tool_call_end|><|tool_calls_section_end|>',
           [("get_weather", {"city": "Beijing"}), ("get_weather", {"city": "Shanghai"})], "Compare weather."),
    Sample("gpt-oss", "openai/harmony, docs/format.md", "<|channel|>analysis<|message|>Need to use function "
           "get_current_weather.<|end|><|start|>assistant<|channel|>commentary to=functions.get_current_weather "
           '<|constrain|>json<|message|>{"location":"San Francisco"}<|call|>',
           [("get_current_weather", {"location": "San Francisco"})]),
    Sample("gpt-oss", "openai/harmony, docs/format.md (a preamble)", "<|channel|>commentary<|message|>**Action plan**:\n"
           "1. Generate an HTML file<|end|><|start|>assistant<|channel|>commentary to=functions.generate_file"
           '<|constrain|>json<|message|>{"template": "basic_html", "path": "index.html"}<|call|>',
           [("generate_file", {"template": "basic_html", "path": "index.html"})],
           "**Action plan**:\n1. Generate an HTML file"),
    Sample("gpt-oss", "vLLM, test_openai_tool_parser (the recipient stands first)", "<|channel|>analysis<|message|>Thinking<|end|>"
           "<|start|>assistant to=functions.get_weather<|channel|>commentary<|constrain|>json<|message|>"
           '{"location": "Paris"}<|call|>', [("get_weather", {"location": "Paris"})]),
    Sample("gpt-oss", "openai/harmony, docs/format.md (an end)", "<|channel|>analysis<|message|>User asks: 2 + 2.<|end|>"
           "<|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|return|>", [], "2 + 2 = 4."),
    Sample("functiongemma", "vLLM, test_functiongemma_tool_parser", "Let me check. <start_function_call>call:get_weather{"
           "location:<escape>San Francisco<escape>,unit:<escape>celsius<escape>}<end_function_call>",
           [("get_weather", {"location": "San Francisco", "unit": "celsius"})], "Let me check."),
    Sample("functiongemma", "vLLM, test_functiongemma_tool_parser (a comma is missing)", "<start_function_call>call:"
           "get_weather{city:<escape>NYC<escape>unit:<escape>celsius<escape>}<end_function_call>",
           [("get_weather", {"city": "NYC", "unit": "celsius"})]),
    Sample("gemma", "vLLM, test_gemma4_tool_parser", '<|tool_call>call:get-weather{location:<|"|>London<|"|>}<tool_call|>'
           '<|tool_call>call:set_status{is_active:true,count:42,score:3.14}<tool_call|>',
           [("get-weather", {"location": "London"}), ("set_status", {"is_active": True, "count": 42, "score": 3.14})]),
    Sample("gemma", "vLLM, test_gemma4_tool_parser", '<|tool_call>call:complex_function{nested:{inner:<|"|>value<|"|>},'
           'list:[<|"|>a<|"|>,<|"|>b]c<|"|>],record_map:{<|"|>3<|"|>:null}}<tool_call|>',
           [("complex_function", {"nested": {"inner": "value"}, "list": ["a", "b]c"], "record_map": {"3": None}})]),
    Sample("minimax", "vLLM, test_minimax_m2_tool_parser", '<minimax:tool_call>\n<invoke name="search_web">\n'
           '<parameter name="query_tag">["technology", "events"]</parameter>\n<parameter name="query_list">["OpenAI"]'
           "</parameter>\n</invoke>\n</minimax:tool_call>",
           [("search_web", {"query_tag": ["technology", "events"], "query_list": ["OpenAI"]})]),
    Sample("minimax", "vLLM, test_minimax_m2_tool_parser (more attributes)", '<minimax:tool_call><invoke name='
           '"execute_command" description="Run a command"><parameter name="command" type="string">ls -la</parameter>'
           "</invoke></minimax:tool_call>", [("execute_command", {"command": "ls -la"})]),
    Sample("lfm2", "LiquidAI/LFM2-1.2B, model card", '<|tool_call_start|>[get_candidate_status(candidate_id="12345")]'
           "<|tool_call_end|>Checking the current status of candidate ID 12345.",
           [("get_candidate_status", {"candidate_id": "12345"})]),
]
SAMPLE = pytest.mark.parametrize("sample", SAMPLES, ids=[f"{number}-{one.family}" for number, one in enumerate(SAMPLES)])


@SAMPLE
def test_samples_are_read(sample: Sample) -> None:
    """What the documentation shows as an answer is read as the calls and words that it is said to be."""
    heard = hear(sample.text, FAMILIES[sample.family], Types(TOOLS))
    assert [item if isinstance(item, str) else (item.name, item.arguments) for item in heard.found] == sample.calls
    assert all(isinstance(item, str) or item.error is None for item in heard.found)
    assert sample.said in ("", heard.said.strip())


@pytest.mark.parametrize("sample", [one for one in SAMPLES if one.calls], ids=lambda one: f"{one.family}-{len(one.text)}")
def test_auto_reads_what_a_server_left_in_the_text(sample: Sample) -> None:
    """With auto, calls in a family's marks are read though the server did not, by marks alone or by the model's name."""
    weak = sample.family in ("llama-json", "llama-pythonic")
    model = "meta-llama/Llama-3.2-3B-Instruct" if weak else "some-finetune"
    reading = named("auto", model).read(ModelResponse(sample.text), TOOLS)
    assert [(call.name, call.arguments) for call in reading.calls] == sample.calls
    assert not reading.native


def test_every_family_has_a_sample_with_its_source() -> None:
    """No format is only read as we write it ourselves."""
    assert {sample.family for sample in SAMPLES} == set(FAMILIES)
    assert all(sample.source for sample in SAMPLES)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_manuals_name_every_tool_and_show_the_form(family: str) -> None:
    """The system prompt of a family has each tool with its parameters, and a call's marks."""
    manual = named(family).manual(TOOLS)
    for spec in TOOLS:
        assert spec.name in manual
        assert all(key in manual for key in spec.parameters["properties"])
    assert "finish" in manual
