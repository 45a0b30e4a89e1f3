"""`threadkeep check FILE`, `threadkeep migrate URL`: what can be asked for from the shell.

Also `python -m threadkeep`. Invariants: a file that is looked at is neither made nor
changed; what cannot be done is said in one line.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TextIO

from threadkeep.backends.sqlite import SqliteBackend
from threadkeep.engine.operations.inspection import CheckReport, Finding
from threadkeep.errors import CorruptionError, ThreadkeepError
from threadkeep.saver import Saver
from threadkeep.savers import open_saver


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Exit codes: 0 all is well, 1 damage was found, 2 it could not be done."""
    parser = argparse.ArgumentParser(prog="threadkeep")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        help="verify every checksum, reference and span of a database",
        epilog="example: threadkeep check threads.db",
    )
    check.add_argument("file", type=Path, help="the SQLite file")
    migrate = commands.add_parser(
        "migrate",
        help="make the tables of a database, or bring them to this release's version",
        epilog="example: threadkeep migrate postgresql://owner@localhost/app?schema=agents",
    )
    migrate.add_argument("url", help="as open_saver takes it")
    options = parser.parse_args(arguments)
    try:
        return _check(options.file) if options.command == "check" else _migrate(options.url)
    except ThreadkeepError as exc:
        _say(f"threadkeep: {' '.join(str(exc).split())}", sys.stderr)
        return 2


def _migrate(url: str) -> int:
    with open_saver(url) as saver:
        saver.setup()
    _say("the tables are of this release")
    return 0


def _check(file: Path) -> int:
    if not file.is_file():
        _say(f"threadkeep: there is no file {file}", sys.stderr)
        return 2
    before = _stamps(file)
    report = _report(file)
    if not report.ok and _stamps(file) != before:
        report = _report(file)  # somebody wrote meanwhile, and what was read may be of two states
    for finding in report.findings:
        _say(str(finding))
    verdict = "sound" if report.ok else f"{len(report.findings)} findings"
    _say(f"{file}: {report.threads} threads, {verdict}")
    return 0 if report.ok else 1


def _report(file: Path) -> CheckReport:
    """What is broken; a file so damaged that it cannot be opened is one finding."""
    try:
        with Saver(SqliteBackend(file, read_only=True)) as saver:
            return saver.check(_progress if sys.stderr.isatty() else None)
    except CorruptionError as exc:
        return CheckReport(0, (Finding(exc.message),))


def _stamps(file: Path) -> list[tuple[int, int] | None]:
    """The sizes and times of the file and its WAL: others when somebody has written."""
    files = (file, file.with_name(file.name + "-wal"))
    stats = [path.stat() if path.exists() else None for path in files]
    return [None if stat is None else (stat.st_size, stat.st_mtime_ns) for stat in stats]


def _progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    _say(f"\r{done} of {total} threads", sys.stderr, end)


def _say(text: str, where: TextIO | None = None, end: str = "\n") -> None:
    """Print: the one place that does."""
    print(text, file=where or sys.stdout, end=end)


if __name__ == "__main__":
    sys.exit(main())
