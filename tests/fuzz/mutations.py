"""Mutations of bytes: of any, of MessagePack, of JSON and of sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

MOST = 4096  # bytes of a mutated input
_SIZES = (0, 1, 2, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1,
          2**63, 2**64 - 1)  # fmt: skip
_MARKS = bytes((*range(0x80, 0x85), *range(0x90, 0x95), 0xA1, *range(0xC0, 0xE0), 0xFF, 0x7F))
_WORDS = (
    b"os", b"system", b"os:system", b"builtins", b"eval", b"subprocess:Popen", b"lc",
    b"constructor",
    b"__class__", b"__reduce__", b"__init__", b"threadkeep_unseen", b"threadkeep_unseen:Loud",
    b"{}", b"[]", b"null", b"NaN", b"1e999", b"-1", b"\\ud800", b"\xed\xa0\x80", b"\0", b"\n", b'"',
    b"%00", b"://", b"@", b"?", b"&", b"=", b"langchain_core", b"pydantic", b"BaseModel",
)  # fmt: skip


def _flip(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _mark(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice(_MARKS)


def _byte(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] = random.randrange(256)


def _cut(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = random.randrange(len(data) + 1)
    del data[start : start + random.choice((1, 2, 8, 64, len(data)))]


def _copy(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = random.randrange(len(data) + 1)
    part = data[start : start + random.choice((1, 4, 16, 128))]
    at = random.randrange(len(data) + 1)
    data[at:at] = part * random.choice((1, 1, 2, 20))


def _size(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Write a number over others, as the length of an array or a text."""
    number, width = random.choice(_SIZES), random.choice((1, 2, 4, 8))
    order = random.choice(("big", "little"))
    at = random.randrange(len(data) + 1)
    data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, order)


def _word(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    word, at = random.choice(_WORDS), random.randrange(len(data) + 1)
    data[at : at + random.choice((0, len(word)))] = word


def _text(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Replace a short MessagePack text by another with the right length."""
    at = random.randrange(len(data) + 1)
    if at < len(data) and 0xA0 <= data[at] < 0xC0:
        word = random.choice(_WORDS)[:31]
        data[at : at + 1 + (data[at] & 31)] = bytes((0xA0 + len(word),)) + word
    else:
        _word(random, data, ())


def _splice(random: Random, data: bytearray, others: Sequence[bytes]) -> None:
    other = random.choice(others)
    start = random.randrange(len(other) + 1)
    at = random.randrange(len(data) + 1)
    data[at : at + random.choice((0, 8, len(data)))] = other[start : start + 256]


def _nest(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.choice((b"[", b"\x91", b'{"a":', b"\x81\xa1a", b"(")) * 600


_ALL: tuple[Callable[[Random, bytearray, Sequence[bytes]], None], ...] = (
    *(_flip, _flip, _mark, _mark, _byte, _byte, _cut, _copy, _size, _size, _word, _text, _text),
    *(_splice, _splice),
)


def mutate(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return changed bytes, of `MOST` at most; `others` give parts."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        random.choice(_ALL)(random, found, others)
    if random.random() < 0.01:
        _nest(random, found, others)
    return bytes(found[:MOST])
