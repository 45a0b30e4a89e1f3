"""Remnants in files of a text that was removed: as it is, and in whatever zstd compressed.

Frames are looked for by how they begin, wherever in a file they lie; of one that is cut in pieces
(SQLite keeps long values in chains of pages) so much is read as lies together.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import zstandard

_ZSTD = b"\x28\xb5\x2f\xfd"
_STEP = 512  # bytes: of a frame that is cut off, what came before that is still looked at


def remnants(folder: Path, text: str) -> dict[str, int]:
    """Count the text in each file of a folder that has it, by the file's path."""
    counts = {
        str(file.relative_to(folder)): sum(held.count(text.encode()) for held in _held(file))
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    return {name: count for name, count in counts.items() if count}


def _held(file: Path) -> Iterator[bytes]:
    data = file.read_bytes()
    yield data
    yield from _unpacked(data)
    if data.startswith(b"SQLite format 3\0"):
        for value in _values(file):
            yield from _unpacked(value)


def _unpacked(data: bytes) -> Iterator[bytes]:
    at = data.find(_ZSTD)
    while at >= 0:
        yield _frame(data[at:])
        at = data.find(_ZSTD, at + 1)


def _frame(data: bytes) -> bytes:
    reading, found = zstandard.ZstdDecompressor().decompressobj(), b""
    for at in range(0, len(data), _STEP):
        try:
            found += reading.decompress(data[at : at + _STEP])
        except zstandard.ZstdError:
            break
        if reading.eof:
            break
    return found


def _values(file: Path) -> Iterator[bytes]:
    """The bytes in the rows of a database."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            for row in db.execute(f"SELECT * FROM {table}"):
                yield from [value for value in row if isinstance(value, bytes)]
