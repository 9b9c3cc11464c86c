"""Data files: rows become shards of JSONL or Parquet, one after the other, never all of them in memory.

JSONL holds messages and schemas of tools as objects. Parquet needs one type for each column: there each message,
``tools`` and other open tables are of Arrow's JSON type, which ``datasets`` 4.7 reads as objects again. The same rows
make the same bytes (Parquet: by one version of pyarrow).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from woodshed.errors import UsageError

Form = Literal["jsonl", "parquet"]
SHARD_BYTES = 256_000_000
CHATS = ("prompt", "completion", "chosen", "rejected", "messages")
TABLES = ("tools", "rewards", "drift", "answer", "asked", "sampling")
"""Columns that Parquet holds as JSON: in the first each entry of a list is one."""
_BATCH_ROWS, _BATCH_BYTES = 256, 16_000_000


class Shards:
    """Writes ``data/train-NNNNN.FORM`` in ``folder``. A context manager; ``files`` are those written.

    ``kind`` names the columns of Parquet: sft, preference, grpo or calls. Raises UsageError where pyarrow is missing.
    """

    def __init__(self, folder: Path, form: Form, kind: str, *, shard_bytes: int = SHARD_BYTES) -> None:
        self.files: list[Path] = []
        self.rows = 0
        self._folder, self._most, self._size = folder / "data", shard_bytes, 0
        self._form, self._open = form, None
        self._schema = schema(kind) if form == "parquet" else None
        self._batch: list[dict[str, Any]] = []
        self._batch_bytes = 0
        self._folder.mkdir(parents=True, exist_ok=True)

    _open: Any

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None and not self.files:
            self._begin()  # no rows are an empty set, and no missing one
        self._end()

    def add(self, row: Mapping[str, Any]) -> None:
        """One more row."""
        if self._open is None or self._size >= self._most:
            self._end()
            self._begin()
        line = line_of(row)
        self.rows += 1
        self._size += len(line)
        if self._form == "jsonl":
            self._open.write(line)
            return
        self._batch.append(flat(row))
        self._batch_bytes += len(line)
        if len(self._batch) >= _BATCH_ROWS or self._batch_bytes >= _BATCH_BYTES:
            self._flush()

    def _begin(self) -> None:
        path = self._folder / f"train-{len(self.files):05d}.{self._form}"
        self.files.append(path)
        self._size = 0
        if self._form == "jsonl":
            self._open = path.open("wb")
        else:
            from pyarrow import parquet  # type: ignore[import-untyped,unused-ignore]  # ships no types

            self._open = parquet.ParquetWriter(path, self._schema, compression="zstd")

    def _flush(self) -> None:
        if self._batch:
            self._open.write_table(_table(self._batch, self._schema))
        self._batch, self._batch_bytes = [], 0

    def _end(self) -> None:
        if self._open is None:
            return
        if self._form == "parquet":
            self._flush()
        self._open.close()
        self._open = None


def _table(rows: list[dict[str, Any]], wanted: Any) -> Any:
    """The rows as an Arrow table. Text becomes JSON by its type alone: of values pyarrow makes no such columns."""
    import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]  # ships no types

    columns = []
    for column in wanted:
        values = [row.get(column.name) for row in rows]
        if column.type == pa.json_():
            made = pa.ExtensionArray.from_storage(column.type, pa.array(values, pa.string()))
        elif pa.types.is_list(column.type) and column.type.value_type == pa.json_():
            listed = pa.array(values, pa.list_(pa.string()))
            inner = pa.ExtensionArray.from_storage(pa.json_(), listed.values)
            made = pa.ListArray.from_arrays(listed.offsets, inner)
        else:
            made = pa.array(values, column.type)
        columns.append(made)
    return pa.Table.from_arrays(columns, schema=wanted)


def line_of(row: Mapping[str, Any]) -> bytes:
    """A row as a line of JSON in UTF-8, whatever the locale; half surrogate pairs become question marks."""
    return (json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n").encode(
        "utf-8", "replace")


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as Parquet holds it."""
    made = {key: _clean(value) for key, value in row.items()}
    for name in CHATS:
        if name in made:
            made[name] = [_text(one) for one in made[name]]
    for name in TABLES:
        if made.get(name) is not None:
            made[name] = _text(made[name])
    return made


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _clean(value: Any) -> Any:
    """Text that UTF-8 can hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(one) for key, one in value.items()}
    return [_clean(one) for one in value] if isinstance(value, list) else value


def schema(kind: str) -> Any:
    """The Arrow schema of an export. Raises UsageError without pyarrow."""
    try:
        import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]  # ships no types
    except ImportError:
        raise UsageError("writing Parquet needs pyarrow", field="--files",
                         remedy="pip install 'woodshed[parquet]', or use --files jsonl.") from None
    text, real, whole, flag = pa.string(), pa.float64(), pa.int64(), pa.bool_()
    table = pa.json_()
    chat = pa.list_(table)
    row = pa.struct({
        "row": whole, "calls": pa.list_(text), "parent": text, "policy_versions": pa.list_(text),
        "mixed": pa.list_(text), "prompt_length": whole, "token_ids": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.int8()), "logprobs": pa.list_(real), "finish_reason": text})
    columns: Mapping[str, Iterable[tuple[str, Any]]] = {
        "sft": [("prompt", chat), ("completion", chat), ("tools", table),
                *_named(text, "task agent model attempt call"), ("reward", real)],
        "preference": [("prompt", chat), ("chosen", chat), ("rejected", chat), ("tools", table),
                       *_named(text, "task agent rejected_agent by chosen_attempt rejected_attempt"),
                       *_named(real, "chosen_total rejected_total chosen_stars rejected_stars")],
        "grpo": [("group", text), *_named(whole, "group_size group_valid"),
                 *_named(real, "baseline deviation advantage"), ("prompt", chat),
                 *_named(text, "rollout attempt"), ("execution", whole), *_named(text, "task agent"), ("index", whole),
                 ("reward", real), ("rewards", table), *_named(flag, "valid passed"), ("cause", text),
                 ("flags", pa.list_(text)), ("stop", text), ("seed", whole), ("trainable", flag),
                 ("untrainable", pa.list_(text)), ("capture_level", text), ("drift", table), ("rows", pa.list_(row))],
        "calls": [*_named(text, "group task agent rollout attempt"), ("execution", whole),
                  *_named(text, "call parent model policy_version policy_after"),
                  *((name, pa.list_(pa.int32())) for name in ("prompt_token_ids", "completion_token_ids")),
                  ("logprobs", pa.list_(real)), ("loss_mask", pa.list_(pa.int8())), ("finish_reason", text),
                  *_named(table, "asked sampling"), ("messages", chat), *_named(table, "tools answer"),
                  ("inherited", flag), ("capture_level", text), ("flaws", pa.list_(text))],
    }
    return pa.schema(list(columns[kind]))


def _named(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]
