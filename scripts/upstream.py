"""Fetches the source distribution of the locked langgraph, and runs its tests on our savers.

    scripts/upstream [OPTION OF PYTEST...]

pip fetches it, once for each version, and checks it against the hashes of the lock. It lies in
build/upstream; nothing of it is changed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "upstream.txt"
PARTS = ("tests", "pyproject.toml")  # the package itself is the one that is installed


def fetched() -> Path:
    """The folder with the tests of the installed langgraph, fetched if it is not there."""
    name = f"langgraph-{version('langgraph')}"
    folder = ROOT / "build" / "upstream" / name
    if folder.exists():
        return folder
    print(f"Fetching the source distribution of {name} (once)", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as temporary:
        there = Path(temporary)
        download(there)
        with tarfile.open(there / f"{name}.tar.gz") as archive:
            wanted = [
                m for m in archive if m.name.split("/")[1:2] and m.name.split("/")[1] in PARTS
            ]
            archive.extractall(there, wanted, filter="data")
        (there / name).rename(folder)
    return folder


def download(there: Path) -> None:
    locked = re.search(r"^langgraph==(?:.*\\\n)*.*\n", LOCK.read_text(), re.MULTILINE)
    if locked is None:
        sys.exit(f"error: {LOCK} names no langgraph: run make lock")
    (there / "langgraph.txt").write_text(locked[0])
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
    options = ["--no-deps", "--no-binary=langgraph", "--no-build-isolation", "--require-hashes"]
    subprocess.run([*pip, *options, f"--dest={there}", f"-r{there / 'langgraph.txt'}"], check=True)


def run(folder: Path, options: list[str]) -> int:
    """Run the tests; the exit code of pytest."""
    pytest = [sys.executable, "-m", "pytest", "-p", "upstream_savers", "-o", "addopts=", "-q"]
    found = os.environ | {"PYTHONPATH": str(ROOT / "tests"), "NO_DOCKER": "true"}
    command = [*pytest, "--snapshot-warn-unused", "-n2", "--dist=worksteal", *options, "tests"]
    return subprocess.run(command, cwd=folder, env=found, check=False).returncode


if __name__ == "__main__":
    sys.exit(run(fetched(), sys.argv[1:]))
