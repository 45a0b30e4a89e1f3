"""The user's side: one question a turn, about the files that are really there."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

from demo.tools import MAX_BYTES, Folder

KEPT = 2_000  # files that questions are about
WORDS = ("open", "return", "error", "name", "size", "read", "write", "close", "import", "value")


class Questions:
    """Question `n` is the same in every process: it depends on the folder and on `n`.

    Raises:
        ValueError: if the folder holds no file to ask about.
    """

    def __init__(self, root: Path) -> None:
        folder = Folder(root)
        some = islice(folder.files(folder.root), KEPT)
        self.files = [folder.name(path) for path in some if 0 < path.stat().st_size < MAX_BYTES]
        if not self.files:
            raise ValueError(f"{root} holds no files to read (hidden files do not count)")

    def __getitem__(self, turn: int) -> str:
        chance = random.Random(turn)
        one, other = chance.choice(self.files), chance.choice(self.files)
        place = one.rpartition("/")[0] or "."
        return chance.choice(
            (
                f"What does `{one}` do?",
                f"Please read `{one}` for me and say what it defines.",
                f"What is in the folder `{place}`?",
                f"Please search for `{chance.choice(WORDS)}` in `{place}`.",
                f"Please compare `{one}` with `{other}`.",
            )
        )
