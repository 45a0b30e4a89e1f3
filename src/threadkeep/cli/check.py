"""`threadkeep check FILE`: whether a SQLite file is sound.

Invariant: the file is neither made nor changed.
"""

from __future__ import annotations

from pathlib import Path

from threadkeep.backends.sqlite import SqliteBackend
from threadkeep.cli.terminal import progress, say, say_wrong
from threadkeep.engine.operations.inspection import CheckReport, Finding
from threadkeep.errors import CorruptionError
from threadkeep.saver import Saver


def check(file: Path) -> int:
    """Say what is broken; the exit code: 0 sound, 1 damaged, 2 no such file."""
    if not file.is_file():
        # (what is no path may be a URL with a password)
        name = "" if set(str(file)) & set("@=:") else f" {file}"
        say_wrong(f"there is no file{name}: check looks at a SQLite file; elsewhere, saver.check()")
        return 2
    before = _stamps(file)
    report = _report(file)
    if not report.ok and _stamps(file) != before:
        report = _report(file)  # somebody wrote meanwhile, and what was read may be of two states
    for finding in report.findings:
        say(str(finding))
    verdict = "sound" if report.ok else f"{len(report.findings)} findings"
    say(f"{file}: {report.threads} threads, {verdict}")
    return 0 if report.ok else 1


def _report(file: Path) -> CheckReport:
    """What is broken; a file so damaged that it cannot be opened is one finding."""
    try:
        with Saver(SqliteBackend(file, read_only=True)) as saver:
            return saver.check(lambda done, total: progress("threads", done, total))
    except CorruptionError as exc:
        return CheckReport(0, (Finding(exc.message),))


def _stamps(file: Path) -> list[tuple[int, int] | None]:
    """The sizes and times of the file and its WAL: others when somebody has written."""
    files = (file, file.with_name(file.name + "-wal"))
    stats = [path.stat() if path.exists() else None for path in files]
    return [None if stat is None else (stat.st_size, stat.st_mtime_ns) for stat in stats]
