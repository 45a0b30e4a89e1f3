"""Write the files of LangGraph's own savers that do not exist: each by the release in its name.

    python tests/golden/make_langgraph.py FOLDER

Each release is installed into an environment of its own in FOLDER, a temporary folder. Without an
argument, the LangGraph of this interpreter writes its file.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

FILES = Path(__file__).parent / "langgraph"
RELEASES = {  # of langgraph -> its checkpoint libraries of that time
    "0.2.10": ("langgraph-checkpoint==1.0.6", "langgraph-checkpoint-sqlite==1.0.1"),
    "0.2.74": ("langgraph-checkpoint==2.0.16", "langgraph-checkpoint-sqlite==2.0.5"),
    "0.4.8": ("langgraph-checkpoint==2.1.0", "langgraph-checkpoint-sqlite==2.0.10"),
    "0.6.6": ("langgraph-checkpoint==2.1.1", "langgraph-checkpoint-sqlite==2.0.11"),
    "1.0.0": ("langgraph-checkpoint==2.1.2", "langgraph-checkpoint-sqlite==2.0.11"),
    "1.2.22": ("langgraph-checkpoint==4.3.2", "langgraph-checkpoint-sqlite==3.1.2"),
}


def file_of(release: str) -> Path:
    return FILES / f"{release}.sqlite"


def install(folder: Path, release: str) -> Path:
    """Return the interpreter of an environment with a release."""
    home = folder / f"v{release}"
    if not home.exists():
        venv.create(home, with_pip=True)
        wanted = [f"langgraph=={release}", *RELEASES[release]]
        subprocess.run([home / "bin" / "pip", "install", "-q", *wanted], check=True)
    return home / "bin" / "python"


def write() -> None:
    """Write the file of the installed release."""
    from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415 - of the release
    from langgraph_threads import play  # noqa: PLC0415 - likewise

    file = file_of(version("langgraph"))
    with sqlite3.connect(file, check_same_thread=False) as db:
        db.execute("PRAGMA page_size = 512")
        play(SqliteSaver(db))
    db.execute("PRAGMA journal_mode = DELETE")
    db.execute("VACUUM")
    db.close()


if __name__ == "__main__":
    if len(sys.argv) == 1:
        write()
    else:
        FILES.mkdir(exist_ok=True)
        for release in RELEASES:
            if not file_of(release).exists():
                subprocess.run([install(Path(sys.argv[1]), release), __file__], check=True)
