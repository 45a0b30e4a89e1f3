"""Write the golden files that are not there yet: python tests/golden/make_codec_golden.py

A file that exists is never written again: it is what a release wrote, and every later
release must read it. A new form of the format gets new files.
"""

from __future__ import annotations

import sys
from pathlib import Path

from codec_golden_values import FILES

from threadkeep.codec import Compression, NativeCodec, pack

FOLDER = Path(__file__).parent / "codec"


def encoded(name: str) -> bytes:
    """Return the bytes of a golden file as this release writes them."""
    codec = NativeCodec()
    level = 3 if name.endswith("-compressed") else 0
    return pack([codec.encode(value) for value in FILES[name]], Compression(level))


def main() -> None:
    """Write what is missing, say what was left alone."""
    for name in FILES:
        path = FOLDER / f"{name}.bin"
        if path.exists():
            sys.stdout.write(f"{path.name} exists: left alone\n")
        else:
            path.write_bytes(encoded(name))
            sys.stdout.write(f"{path.name} written\n")


if __name__ == "__main__":
    main()
