"""`python -m threadkeep check FILE`: what can be asked of a store from the shell."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TextIO

from threadkeep.errors import ThreadkeepError
from threadkeep.savers import SqliteSaver


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Exit codes: 0 all is well, 1 damage was found, 2 it could not be done."""
    parser = argparse.ArgumentParser(prog="python -m threadkeep")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        help="verify every checksum, reference and span of a database",
        epilog="example: python -m threadkeep check threads.db",
    )
    check.add_argument("file", type=Path, help="the SQLite file")
    options = parser.parse_args(arguments)
    try:
        return _check(options.file)
    except ThreadkeepError as exc:
        _say(f"threadkeep: {' '.join(str(exc).split())}", sys.stderr)
        return 2


def _check(file: Path) -> int:
    if not file.is_file():
        _say(f"threadkeep: there is no file {file}", sys.stderr)
        return 2
    with SqliteSaver(file) as saver:
        report = saver.check(_progress if sys.stderr.isatty() else None)
    for finding in report.findings:
        _say(str(finding))
    verdict = "sound" if report.ok else f"{len(report.findings)} findings"
    _say(f"{file}: {report.threads} threads, {verdict}")
    return 0 if report.ok else 1


def _progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    _say(f"\r{done} of {total} threads", sys.stderr, end)


def _say(text: str, where: TextIO | None = None, end: str = "\n") -> None:
    """Print: the one place that does."""
    print(text, file=where or sys.stdout, end=end)


if __name__ == "__main__":
    sys.exit(main())
