"""The header reader agrees with the ``gguf`` package, survives hostile files, and only Coder models get fences."""

from __future__ import annotations

import random
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.errors import UsageError
from woodshed.gateway.local import header, template

# The parts of Qwen2.5's own template that matter here, as its GGUF files carry them.
QWEN = r"""{%- if tools %}
    {{- "\n\n# Tools\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {{- '\n<tool_response>\n' }}
"""  # noqa: E501  one line of the template is one line of the template


def _write(path: Path, *, name: str, architecture: str, chat: str | None, tokens: int = 300) -> Path:
    """A GGUF file without tensors, made by the package that defines the format."""
    gguf = pytest.importorskip("gguf", reason="needs the package gguf: pip install gguf")
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(name)
    writer.add_uint32("some.number", 7)
    writer.add_float64("some.float", 0.5)
    writer.add_bool("some.flag", True)
    writer.add_token_list([f"token{number}" for number in range(tokens)])
    writer.add_token_scores([0.5] * tokens)
    writer.add_array("some.nested", [[1, 2], [3]])
    if chat is not None:
        writer.add_chat_template(chat)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_header_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Name, architecture and template come out whatever stands between them."""
    path = _write(tmp_path / "m.gguf", name="Qwen2.5 Coder 0.5B", architecture="qwen2", chat=QWEN)
    assert header.read(path) == header.Header("Qwen2.5 Coder 0.5B", "qwen2", QWEN)


def test_a_coder_model_is_asked_for_fences(tmp_path: Path) -> None:
    """All three places change together: what is asked for, and how a past call opens and closes."""
    path = _write(tmp_path / "m.gguf", name="Qwen2.5 Coder 0.5B", architecture="qwen2", chat=QWEN)
    chat = template.derived(header.read(path))
    assert chat is not None
    assert "tool_call>" not in chat
    assert chat.count("```json") == 3
    assert chat.count("<tool_response>") == 1
    assert template.fenced(chat) is None


@pytest.mark.parametrize(
    ("name", "architecture", "chat"),
    [
        ("Qwen2.5 0.5B Instruct", "qwen2", QWEN),
        ("Some Coder", "llama", QWEN),
        ("Qwen2.5 Coder", "qwen2", QWEN + QWEN),
        ("Qwen2.5 Coder", "qwen2", QWEN.replace("</tools>", "")),
        ("Qwen2.5 Coder", "qwen2", None),
    ],
    ids=["plain Qwen", "other architecture", "twice", "other wording", "no template"],
)
def test_any_other_model_keeps_its_own(tmp_path: Path, name: str, architecture: str, chat: str | None) -> None:
    """A model that is not Qwen2.5-Coder with that very template is served as it came."""
    path = _write(tmp_path / "m.gguf", name=name, architecture=architecture, chat=chat, tokens=3)
    assert template.derived(header.read(path)) is None


def test_the_file_name_may_say_that_it_is_a_coder(tmp_path: Path) -> None:
    """Where the header's name was lost in a conversion, the file's own name counts."""
    path = _write(tmp_path / "m.gguf", name="model", architecture="qwen2", chat=QWEN, tokens=3)
    assert template.derived(header.read(path), "qwen2.5-coder-3b.gguf") is not None


def test_a_damaged_header_is_a_usage_error(tmp_path: Path) -> None:
    """Cut anywhere or with any byte changed, a file is read or refused, never a crash or endless work."""
    path = _write(tmp_path / "m.gguf", name="Coder", architecture="qwen2", chat="x" * 50, tokens=20)
    whole, chance, refused = path.read_bytes(), random.Random(5), 0
    for _ in range(400):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged[: chance.randrange(len(damaged))] if chance.random() < 0.5 else damaged)
        try:
            header.read(path)
        except UsageError:
            refused += 1
    assert refused > 100


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1), st.integers(0, 20))
def test_hostile_counts_end_quickly(tail: bytes, count: int, kind: int) -> None:
    """A table that promises more than the file holds is refused."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(b"GGUF" + struct.pack("<IQQQ", 3, 0, count, 1) + b"k" + struct.pack("<I", kind) + tail)
        file.flush()
        with suppress(UsageError):  # an empty table may well be read
            assert header.read(Path(file.name)).template == ""


def test_what_is_no_gguf_is_refused(tmp_path: Path) -> None:
    """An empty file, another format, an unknown version and a folder are refused with the file's name."""
    for number, content in enumerate((b"", b"PK\x03\x04" + b"0" * 60, b"GGUF" + struct.pack("<IQQ", 9, 0, 0))):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(content)
        with pytest.raises(UsageError, match=f"{number}.gguf: not a readable GGUF file"):
            header.read(path)
    with pytest.raises(UsageError, match="no such file"):
        header.read(tmp_path / "absent.gguf")
    with pytest.raises(UsageError, match="not a readable"):
        header.read(tmp_path)
