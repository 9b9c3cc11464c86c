"""Rows of a Parquet file, as those of a JSONL file. Needs pyarrow, which comes with the extra ``parquet``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from woodshed.errors import UsageError
from woodshed.tasks.rows import MAX_ITEM_BYTES, MAX_ROWS, Item

_AT_ONCE = 16


def read_parquet(file: Path) -> Iterator[Item]:
    """The rows of ``file``, a few in memory at a time. ``line`` is the row's number, from 1. Raises UsageError."""
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-untyped,unused-ignore]  # ships no types
    except ImportError:
        raise UsageError("reading Parquet needs pyarrow", file=file,
                         remedy="pip install 'woodshed[parquet]', or convert the file to JSONL.") from None
    if not file.is_file():
        raise UsageError("no such file", file=file, remedy="Pass a JSONL or Parquet file.")
    try:
        with parquet.ParquetFile(file) as opened:
            if opened.metadata.num_rows > MAX_ROWS:
                raise UsageError(f"more than {MAX_ROWS} rows", file=file, remedy="Split it.")
            line = 0
            for batch in opened.iter_batches(batch_size=_AT_ONCE):
                if batch.nbytes > MAX_ITEM_BYTES * _AT_ONCE:
                    raise UsageError(f"more than {MAX_ITEM_BYTES} bytes in a row", file=f"{file}:{line + 1}",
                                     remedy="Is this the right file?")
                for values in batch.to_pylist():
                    line += 1
                    yield Item(file, line, values)
    except (ArrowException, OSError, ValueError) as error:
        raise UsageError(f"no Parquet: {error}", file=file, remedy="Fetch the file again.") from None
