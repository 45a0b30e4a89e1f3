"""Pictures and files in messages, in the forms that models and their libraries use."""

from __future__ import annotations

import base64
import binascii
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


@dataclass(frozen=True, slots=True)
class Medium:
    """A picture or file: its `kind`, such as "image/png", and its base64 or its `url`."""

    kind: str
    base64: str = ""
    url: str = ""

    @property
    def title(self) -> str:
        """Its type and size: "image/png, 70 bytes"; "" for a URL."""
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
    """Return the picture or file of a message's block; None if it has none."""
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
        if value[:5].lower() != "data:":
            return Medium(kind, value) if name in _DATA else Medium(kind, url=value)
        head, _, data = value[5:].partition(",")
        if head.lower().endswith(";base64"):
            return Medium(head.partition(";")[0], data)
        return Medium(head.partition(";")[0], url=value)
    return None
