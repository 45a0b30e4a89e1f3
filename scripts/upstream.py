"""Fetch the source distributions of LangGraph's packages, and run their tests with our classes.

    scripts/upstream [OPTION OF PYTEST...]

pip fetches them, once for each version, and checks them against the hashes of the lock. They lie
in build/upstream; nothing of them is changed.
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
PARTS = ("tests", "pyproject.toml")  # the package itself is the installed one
PACKAGES = (
    "langgraph",
    "langgraph-prebuilt",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
)
NOTHING_RAN = 5  # pytest's exit code if the options choose tests of other packages


def fetched(package: str) -> Path:
    """The folder with the tests of an installed package, fetched if missing."""
    name = f"{package.replace('-', '_')}-{version(package)}"
    folder = ROOT / "build" / "upstream" / name
    if folder.exists():
        return folder
    print(f"Fetching the source distribution of {package} {version(package)} (once)", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as temporary:
        there = Path(temporary)
        download(package, there)
        with tarfile.open(there / f"{name}.tar.gz") as archive:
            wanted = [
                m for m in archive if m.name.split("/")[1:2] and m.name.split("/")[1] in PARTS
            ]
            archive.extractall(there, wanted, filter="data")
        (there / name).rename(folder)
    return folder


def download(package: str, there: Path) -> None:
    locked = re.search(rf"^{package}==(?:.*\\\n)*.*\n", LOCK.read_text(), re.MULTILINE)
    if locked is None:
        sys.exit(f"error: {LOCK} names no {package}: run make lock")
    (there / "locked.txt").write_text(locked[0])
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
    options = ["--no-deps", f"--no-binary={package}", "--no-build-isolation", "--require-hashes"]
    subprocess.run([*pip, *options, f"--dest={there}", f"-r{there / 'locked.txt'}"], check=True)


def run(package: str, options: list[str]) -> int:
    """Run the tests of a package; the exit code of pytest."""
    print(f"== tests of {package} {version(package)}", flush=True)
    pytest = [sys.executable, "-m", "pytest", "-p", "upstream_savers", "-o", "addopts=", "-q"]
    loops = ["-o", "asyncio_default_fixture_loop_scope=function"]
    found = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tests"),
        "NO_DOCKER": "true",
        "TK_UPSTREAM_PACKAGE": package,
    }
    command = [*pytest, *loops, "--snapshot-warn-unused", "-n2", "--dist=worksteal", *options]
    return subprocess.run(
        [*command, "tests"], cwd=fetched(package), env=found, check=False
    ).returncode


def main(options: list[str]) -> int:
    asked = os.environ.get("TK_UPSTREAM_PACKAGES")
    packages = asked.split(",") if asked else PACKAGES
    codes = {run(package, options) for package in packages}
    return max(codes - {0, NOTHING_RAN}, default=0 if 0 in codes else NOTHING_RAN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
