"""openai-harmony and mistral-common against our formats: what they write and read. Each in a Python of its own.

harmony fetches a vocabulary when it is first used; where that is out of reach it is made of the npm package
js-tiktoken, whose ranks are the same file, byte by byte (its sha256 is the one that harmony itself demands).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from otherpython import python_with
from woodshed.harness.dialects.chats import CHATS
from woodshed.harness.dialects.families import FAMILIES
from woodshed.harness.dialects.hearing import hear
from woodshed.harness.dialects.typed import Types
from woodshed.interfaces import ToolSpec
from woodshed.model import Message, ToolCall

pytestmark = pytest.mark.slow

RANKS, SHA256 = "js-tiktoken@1.0.21", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
TOOLS = [
    ToolSpec("bash", "Runs a command.\nAnd waits.", {"type": "object", "properties": {
        "command": {"type": "string", "description": "What to run."},
        "count": {"type": "integer", "description": "How often.", "default": 1},
        "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
        "paths": {"type": "array", "items": {"type": "string"}}, "anything": {"type": "array"},
        "deep": {"type": "object", "description": "In\\ndeed.", "properties": {
            "x": {"type": "number"}, "more": {"type": "object", "properties": {"z": {"type": "boolean"}}}}},
        "rows": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}},
                                            "required": ["x"]}},
        "maybe": {"type": ["string", "null"]}, "whatever": {}}, "required": ["command"]}),
    ToolSpec("finish", "Ends it.", {"type": "object", "properties": {}}),
]
CALLS: list[list[dict[str, Any]]] = [
    [{"command": "ls"}], [{}], [{"command": "echo 'é' \"q\" \\n \\\\ <b> && [x] {y} $z; 😀\n\ttwo lines\n"}],
    [{"command": "x", "count": -3, "deep": {"x": 2.5, "more": {"z": True}}, "paths": ["a", "b"], "maybe": None}],
]
WRITTEN = [  # openai/harmony, docs/format.md; vLLM, test_openai_tool_parser
    "<|channel|>analysis<|message|>Need to use it.<|end|><|start|>assistant<|channel|>commentary to=functions.get "
    '<|constrain|>json<|message|>{"location":"San Francisco"}<|call|>',
    "<|channel|>commentary<|message|>**Action plan**:\n1. Generate<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.generate<|constrain|>json<|message|>{"template": "basic", "path": "index.html"}<|call|>',
    "<|channel|>analysis<|message|>Thinking<|end|><|start|>assistant to=functions.get_weather<|channel|>commentary"
    '<|constrain|>json<|message|>{"location": "Paris"}<|call|>',
    "<|channel|>analysis<|message|>User asks.<|end|><|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|return|>",
]
HARMONY = """
import json, sys
from openai_harmony import (Author, Conversation, DeveloperContent, HarmonyEncodingName, Message, Role, SystemContent,
                            ToolDescription, load_harmony_encoding)
encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
asked = json.load(sys.stdin)
tools = [ToolDescription.new(*tool) for tool in asked["tools"]]
developer = DeveloperContent.new().with_instructions("SYS").with_function_tools(tools)
head = [Message.from_role_and_content(Role.SYSTEM, SystemContent.new()),
        Message.from_role_and_content(Role.DEVELOPER, developer), Message.from_role_and_content(Role.USER, "USER")]
rendered = []
for calls in asked["calls"]:
    turns = []
    for number, call in enumerate(calls):
        said = Message.from_role_and_content(Role.ASSISTANT, call).with_channel("commentary")
        result = Message.from_author_and_content(Author.new(Role.TOOL, "functions.bash"), f"R{number}")
        turns += [Message.from_role_and_content(Role.ASSISTANT, "Hm.").with_channel("analysis"),
                  said.with_recipient("functions.bash").with_content_type("<|constrain|>json"),
                  result.with_channel("commentary").with_recipient("assistant")]
    talk = Conversation.from_messages(head + turns)
    rendered.append(encoding.decode_utf8(encoding.render_conversation_for_completion(talk, Role.ASSISTANT)))
read = []
for text in asked["texts"]:
    tokens = encoding.encode(text, allowed_special="all")
    found = [message.to_dict() for message in encoding.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT)]
    read.append([[one.get("recipient"), one.get("channel"), one["content"][0]["text"]] for one in found])
stops = [encoding.decode_utf8([token]) for token in encoding.stop_tokens_for_assistant_actions()]
json.dump({"rendered": rendered, "read": read, "stops": stops}, sys.stdout)
"""
MISTRAL = """
import json, sys
from pathlib import Path
import mistral_common
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.base import SpecialTokens
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

def tekken(version):
    kept = json.loads((Path(mistral_common.__file__).parent / "data" / "tekken_240911.json").read_text())
    kept["config"]["version"] = version  # a version whose models' own files are not in the package: its rules are
    kept["special_tokens"] = [{"rank": rank, "token_str": token.value, "is_control": True}
                              for rank, token in enumerate(SpecialTokens)]
    path = Path(sys.argv[1]) / f"tekken_{version}.json"
    path.write_text(json.dumps(kept))
    return MistralTokenizer.from_file(str(path))

made = {}
for version, tokenizer in (("v3", MistralTokenizer.v3()), ("v11", tekken("v11")), ("v13", tekken("v13"))):
    made[version] = [tokenizer.encode_chat_completion(ChatCompletionRequest(**request)).text
                     for request in json.loads(Path(sys.argv[1], "asked.json").read_text())]
json.dump(made, sys.stdout)
"""


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with harmony's vocabulary."""
    if (given := os.environ.get("TIKTOKEN_ENCODINGS_BASE")) and Path(given, "o200k_base.tiktoken").is_file():
        return Path(given)
    folder, npm = tmp_path_factory.mktemp("vocabulary"), shutil.which("npm")
    packed = npm and subprocess.run([npm, "pack", "--silent", RANKS], cwd=folder, capture_output=True, check=False)
    archive = next(folder.glob("*.tgz"), None)
    if not packed or archive is None:
        pytest.skip(f"needs o200k_base.tiktoken: a folder with it in TIKTOKEN_ENCODINGS_BASE, or npm that gets {RANKS}")
    with tarfile.open(archive) as opened:
        source = opened.extractfile("package/dist/ranks/o200k_base.js")
        assert source is not None
        script = source.read().decode()
    found = re.search(r'"?bpe_ranks"?: ?"((?:[^"\\]|\\.)*)"', script)
    assert found is not None
    ranks: dict[int, str] = {}
    for line in json.loads(f'"{found[1]}"').split("\n"):
        if line:
            _, first, *tokens = line.split(" ")
            ranks |= {int(first) + place: token for place, token in enumerate(tokens)}
    content = "".join(f"{ranks[rank]} {rank}\n" for rank in sorted(ranks)).encode()
    assert hashlib.sha256(content).hexdigest() == SHA256
    assert base64.b64decode(ranks[0]) == b"!"
    (folder / "o200k_base.tiktoken").write_bytes(content)
    return folder


def test_harmony_writes_and_reads_what_we_do(vocabulary: Path, tmp_path: Path) -> None:
    """Conversations are the same text; every sample and every call that we write is read as the same calls."""
    types = Types(TOOLS)
    texts = WRITTEN + [
        FAMILIES["gpt-oss"].write("I look.", [ToolCall(id="", name="bash", arguments=each) for each in case], types)
        for case in CALLS]
    calls = [[json.dumps(arguments, ensure_ascii=False) for arguments in case] for case in CALLS]
    asked = {"tools": [[tool.name, tool.description, dict(tool.parameters)] for tool in TOOLS], "calls": calls,
             "texts": texts}
    done = subprocess.run(
        [python_with(tmp_path, "openai-harmony"), "-c", HARMONY], input=json.dumps(asked), capture_output=True,
        text=True,
        env={**os.environ, "TIKTOKEN_ENCODINGS_BASE": str(vocabulary)}, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for case, text in zip(calls, told["rendered"], strict=True):
        talk = [Message(role="system", content="SYS"), Message(role="user", content="USER")]
        for number, call in enumerate(case):
            said = ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.bash"
                    f"<|channel|>commentary <|constrain|>json<|message|>{call}")
            talk += [Message(role="assistant", content=said), Message(role="tool", content=f"R{number}")]
        assert CHATS["gpt-oss"].prompt(talk, TOOLS) == text
    for text, messages in zip(texts, told["read"], strict=True):
        theirs = [(recipient.removeprefix("functions."), json.loads(content))
                  for recipient, _, content in messages if recipient and recipient != "assistant"]
        heard = hear(text, FAMILIES["gpt-oss"], types)
        ours = [(item.name, item.arguments) for item in heard.found if isinstance(item, ToolCall)]
        assert ours == theirs, text
        spoken = [content for recipient, channel, content in messages if not recipient and channel != "analysis"]
        assert heard.said == "".join(spoken), text
    assert set(told["stops"]) == set(CHATS["gpt-oss"].stops)


def test_mistral_common_writes_what_we_do_and_we_read_what_it_writes(tmp_path: Path) -> None:
    """Conversations are the same text as its tokenizers', and calls in it are read as those calls, of any version."""
    folder = tmp_path / "asked"
    folder.mkdir()
    offered = [{"type": "function", "function": {"name": tool.name, "description": tool.description,
                                                 "parameters": dict(tool.parameters)}} for tool in TOOLS]
    requests: list[dict[str, Any]] = []
    cases = [*CALLS, [{"command": "a"}, {"command": "b"}]]
    for case in cases:
        made = [{"id": f"abcdefgh{number}", "type": "function", "function": {
            "name": "bash", "arguments": json.dumps(each, ensure_ascii=False)}} for number, each in enumerate(case)]
        results = [{"role": "tool", "name": "bash", "tool_call_id": call["id"], "content": f"R{number}"}
                   for number, call in enumerate(made)]
        requests.append({"tools": offered, "messages": [
            {"role": "system", "content": "SYS"}, {"role": "user", "content": "USER"},
            {"role": "assistant", "content": "", "tool_calls": made}, *results]})
    (folder / "asked.json").write_text(json.dumps(requests))
    done = subprocess.run([python_with(tmp_path / "venv", "mistral-common[sentencepiece]"), "-c", MISTRAL, folder],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    types = Types(TOOLS)
    for version, texts in json.loads(done.stdout).items():
        family = "mistral" if version == "v3" else "mistral-v11"
        for case, text in zip(cases, texts, strict=True):
            if version == "v3":
                text = re.sub(r"<0x([0-9A-F]{2})>", lambda found: chr(int(found[1], 16)), text).replace("▁", " ")
            answer = text[text.index("[TOOL_CALLS]"):text.index("</s>")]
            heard = hear(answer, FAMILIES[family], types)
            assert [(item.name, item.arguments, item.error) for item in heard.found if isinstance(item, ToolCall)] == [
                ("bash", arguments, None) for arguments in case], (version, answer)
            talk = [Message(role="system", content="SYS"), Message(role="user", content="USER"),
                    Message(role="assistant", content=answer),
                    *(Message(role="tool", content=f"R{number}") for number in range(len(case)))]
            if version != "v11":  # which tells tools before the last user's turn; the same here, where there is one
                assert CHATS[family].prompt(talk, TOOLS) == text.removeprefix("<s>"), version
