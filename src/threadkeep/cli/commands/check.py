"""`threadkeep check`: whether a store is sound.

Invariant: nothing is made or changed.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from threadkeep.backends.open import file_of
from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import AsJson, Cold, Url, UrlArgument
from threadkeep.cli.stores import reading, shown, url_of
from threadkeep.cli.terminal import Output, Told, clean
from threadkeep.errors import CorruptionError
from threadkeep.repair.check import (
    CheckReport,
    Finding,
)


@command(Panel.STORE, "threadkeep check threads.db")
def check(
    store: UrlArgument = None, *, cold: Cold = None, url: Url = None, as_json: AsJson = False
) -> int:
    """Verify every checksum, reference and span. Exit code 0: sound (or notes), 1: damaged."""
    place, output = url_of(url, store), Output(as_json=as_json)
    before = _stamps(place)
    with output.progress() as told:
        report = _report(place, cold, told)
        if not report.ok and _stamps(place) != before:
            # Somebody wrote meanwhile, and what was read may be of two states.
            report = _report(place, cold, told)
    verdict = "sound" if report.ok else f"{len(report.findings)} findings"
    if report.notes:
        verdict += f", {len(report.notes)} notes"
    document = {
        "store": shown(place),
        "ok": report.ok,
        "threads": report.threads,
        "findings": [asdict(finding) for finding in report.findings],
        "notes": [asdict(note) for note in report.notes],
    }
    lines = [clean(f"{finding.kind}: {finding}") for finding in report.findings]
    lines += [clean(f"note: {note}") for note in report.notes]
    output.tell(document, *lines, f"{shown(place)}: {report.threads} threads, {verdict}")
    return 0 if report.ok else 1


def _report(url: str, cold: str | None, told: Told) -> CheckReport:
    """What is broken; a file so damaged that it cannot be opened is one finding."""
    try:
        with reading(url, cold) as saver:
            return saver.check(told)
    except CorruptionError as exc:
        return CheckReport(0, (Finding(exc.message),))


def _stamps(url: str) -> list[tuple[int, int] | None]:
    """Of a SQLite file, the sizes and times of it and its WAL: others when somebody has written."""
    path = file_of(url)
    files = [] if path is None else [Path(path), Path(f"{path}-wal")]
    stats = [file.stat() if file.exists() else None for file in files]
    return [None if stat is None else (stat.st_size, stat.st_mtime_ns) for stat in stats]
