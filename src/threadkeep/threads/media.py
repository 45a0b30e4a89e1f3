"""Pictures and files in messages, in the forms that models and their libraries use."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from threadkeep._core.texts import size

_INNER = ("image_url", "image", "source", "input_audio", "audio", "file", "document", "video")
_TYPES = ("mime_type", "media_type", "format")
_DATA = ("base64", "data", "file_data", "bytes")
_URLS = ("url", "image_url", "file_url", "uri", "image")
_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_DEEPEST = 4  # levels of a block
_DATA_URL = re.compile(r"data:([\w.+/-]{0,120})[^,]{0,200};base64,", re.ASCII | re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
_MIXED = re.compile(r"(?=.{0,199}[A-Z])(?=.{0,199}[a-z])(?=.{0,199}[0-9])")
_LONG = 200  # characters of mixed letters and digits that are no word


@dataclass(frozen=True, slots=True)
class Medium:
    """A picture or file: its `kind`, such as "image/png", and its base64 or its `url`."""

    kind: str
    base64: str = ""
    url: str = ""

    @property
    def title(self) -> str:
        """Its type and size: "image/png, 70 bytes", or "" for a URL."""
        if not self.base64:
            return ""
        count = len(self.base64.rstrip("=")) * 3 // 4
        return f"{self.bitmap or self.kind or 'base64'}, {size(count)}"

    @property
    def bitmap(self) -> str:
        """The type of a PNG, JPEG, GIF or WebP by its first bytes, else "". An SVG is none."""
        head = self.base64[:64]
        try:
            first = binascii.a2b_base64(head[: len(head) // 4 * 4])
        except ValueError:
            return ""
        if first[:4] == b"RIFF" and first[8:12] == b"WEBP":
            return "image/webp"
        return next((kind for magic, kind in _MAGIC.items() if first.startswith(magic)), "")

    @property
    def is_sound(self) -> bool:
        """True if the data is base64, and nothing else."""
        try:
            binascii.a2b_base64(self.base64, strict_mode=True)
        except ValueError:
            return False
        return True


def medium(block: Mapping[str, Any]) -> Medium | None:
    """Return the picture or file of a message's block, or None if it has none."""
    level, found = block, {**block}
    for _ in range(_DEEPEST):
        below = next((level[name] for name in _INNER if isinstance(level.get(name), Mapping)), None)
        if below is None:
            break
        level = below
        found |= below
    kind = next((found[name] for name in _TYPES if isinstance(found.get(name), str)), "")
    for name in (*_DATA, *_URLS):
        value = found.get(name)
        if isinstance(value, bytes):
            return Medium(kind, base64.b64encode(value).decode())
        if not isinstance(value, str) or not value:
            continue
        if head := _DATA_URL.match(value):
            return Medium(head[1], value[head.end() :])
        is_data = name in _DATA and not value.startswith("data:")
        return Medium(kind, value) if is_data else Medium(kind, url=value)
    return None


def encoded(text: str) -> Medium | None:
    """Return the data that a text is: a data URL, a picture's base64, or long base64."""
    head = _DATA_URL.match(text)
    found = Medium(head[1], text[head.end() :]) if head else Medium("", text)
    is_data = head or found.bitmap or (len(text) >= _LONG and _MIXED.match(text))
    return found if is_data and _BASE64.fullmatch(found.base64) else None
