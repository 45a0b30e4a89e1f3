"""The scripts that run in the server, and calls of them.

Only their loading and these records live here. Invariant: a script's text depends on nothing
but the files beside this module, so that a server keeps few of them and each is known by its
digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple, TypeAlias

Word: TypeAlias = bytes | str | int


class Script(NamedTuple):
    """A script's text, and the digest by which a server knows it."""

    text: str
    digest: str


class Call(NamedTuple):
    """A command as it is sent; for one that runs a script, `anew` brings the script's text."""

    words: tuple[Word, ...]
    anew: tuple[Word, ...] | None = None


@cache
def _script(*names: str) -> Script:
    folder = files(__package__)
    text = "\n".join(folder.joinpath(f"{name}.lua").read_text("utf-8") for name in names)
    # SHA-1 is how Redis names scripts: nothing is kept safe by it.
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def reading() -> Script:
    """The script that answers reads of one thread."""
    return _script("common", "read")


def writing(name: str) -> Script:
    """The script that carries out a change: "commit", "drop", "copy" or "fork"."""
    return _script("common", "writing", "registry", *_BEFORE.get(name, ()), name)


_BEFORE = {  # what a script calls besides
    "commit": ("checks", "rows"),
    "drop": ("checks", "rows"),
    "copy": ("founding",),
    "fork": ("founding",),
}


def call(script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Call:
    """Run a script."""
    rest = (len(keys), *keys, *arguments)
    return Call(("EVALSHA", script.digest, *rest), ("EVAL", script.text, *rest))
