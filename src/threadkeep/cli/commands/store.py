"""Commands for a whole store: stats, check, repair, backup, restore, migrate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from threadkeep.backends.open import file_of
from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import STORE, AsJson, Cold, Programs, Url, UrlArgument, thread_ids
from threadkeep.cli.render import (
    bar,
    document,
    in_a_line,
    size,
    some,
    table,
    text,
)
from threadkeep.cli.stores import made, reading, shown, url_of, writing
from threadkeep.cli.terminal import Output, Told, clean
from threadkeep.errors import CorruptionError, InvalidArgumentError
from threadkeep.repair.check import (
    CheckReport,
    Finding,
)
from threadkeep.repair.repair import (
    HINTS,
    RepairedThread,
    RepairReport,
)
from threadkeep.stats import ThreadStats
from threadkeep.transfer import backup as backups

_PARTS = {
    "manifests": "(what checkpoints say of channels)",
    "pending_writes": "(pending writes)",
    "metadata": "(metadata of checkpoints)",
    "unreferenced": "(not referred to any more)",
}
"""Parts of a thread beside its channels, in `ThreadStats` and as they are shown."""


@command(Panel.STORE, "threadkeep stats threads.db --top 20")
def stats(
    store: UrlArgument = None,
    *,
    top: Annotated[int, typer.Option("--top", min=1, help="how many threads and channels")] = 10,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Show sizes by thread and by channel, beside whole copies of each state. Reads all."""
    place, output = url_of(url, store), Output(as_json=as_json)
    with reading(place) as saver, output.working("reading all threads"):
        found = saver.stats()
    channels: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    for one in found.by_thread:
        channels.update(one.channels)
        parts.update({name: getattr(one, name) for name in _PARTS})
    whole = sum([one.bytes for one in found.by_thread])
    document = {
        "store": shown(place),
        "bytes": whole,
        **asdict(found),
        "by_channel": dict(channels.most_common()),
        "by_part": {"channels": channels.total(), **parts},
    }
    counted = f"{some(found.threads, 'thread')}, {some(found.checkpoints, 'checkpoint')}"
    largest = sorted(found.by_thread, key=lambda one: one.bytes, reverse=True)
    output.tell(
        document,
        text(f"{shown(place)}: {counted}"),
        f"{size(found.bytes_on_disk)} bytes in the store, {size(whole)} of them in threads;"
        f" whole copies would take {size(found.full_copy_bytes)}",
        "",
        _of_threads(largest[:top]),
        *_left_out(len(largest) - top),
        "",
        _of_parts(channels, parts, top),
    )
    return 0


def _of_threads(threads: list[ThreadStats]) -> Table:
    most = max([one.bytes for one in threads], default=0)
    rows = [
        (
            text(one.thread),
            size(one.checkpoints),
            size(one.bytes),
            size(one.full_copy_bytes),
            bar(one.bytes, most),
        )
        for one in threads
    ]
    return table(("thread", "checkpoints>", "bytes>", "whole copies>", ""), rows)


def _of_parts(channels: Counter[str], parts: Counter[str], top: int) -> Table:
    """All parts of the threads' bytes, down to their sum; the smallest channels in one line."""
    named = [(name, count) for name, count in channels.most_common(top) if count]
    rest = channels.total() - sum([count for _, count in named])
    named += [(f"... {len(channels) - top} more channels (--top)", rest)] if rest else []
    named += [(shown_as, parts[name]) for name, shown_as in _PARTS.items() if parts[name]]
    most = max([count for _, count in named], default=0)
    rows = [(text(name), size(count), bar(count, most)) for name, count in named]
    rows.append((text("all"), size(channels.total() + parts.total()), text("")))
    return table(("channel", "bytes>", ""), rows)


def _left_out(count: int) -> list[str]:
    return [f"... {count} more (--top)"] if count > 0 else []


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


@command(Panel.STORE, "threadkeep repair --url threads.db --dry-run")
def repair(
    threads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[THREAD]...", help="the threads' ids; default: all", autocompletion=thread_ids
        ),
    ] = None,
    *,
    quarantine: Annotated[
        Path | None,
        typer.Option(
            "--quarantine",
            metavar="FILE",
            help="where to what is taken out; default: quarantine-TIME.tkq, beside a SQLite file,"
            " else in this folder",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only tell what would be taken out")
    ] = False,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Take out what cannot be read, into a file. Exit code 0: all is sound, 1: not all."""
    place, output = url_of(url), Output(as_json=as_json)
    file = quarantine or _beside(file_of(place))
    with writing(place, cold) as saver, output.progress() as told:
        report = saver.threads.repair(threads or None, file=file, dry_run=dry_run, progress=told)
    lines = [line for one in report.repaired for line in _repair_lines(one, dry_run=dry_run)]
    lines += [f"left: {finding}" for finding in report.left]
    kinds = {finding.kind for finding in report.left}
    lines += [hint for kind, hint in HINTS.items() if kind in kinds]
    lines.append(_repair_summary(shown(place), report, dry_run=dry_run))
    output.tell(_repair_document(shown(place), report, dry_run=dry_run), *map(clean, lines))
    return 0 if report.ok else 1


def _beside(store: str | None) -> Path:
    """A new name in the folder of a SQLite file, or in this folder."""
    folder = Path(store or "").parent
    return folder / f"quarantine-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.tkq"


def _repair_lines(one: RepairedThread, *, dry_run: bool) -> list[str]:
    """What is said of a thread: how much goes, and what its head is then."""
    parts = {
        "checkpoints": len(one.checkpoints),
        "pending writes": one.writes,
        "segments": one.segments,
        "unreadable rows": one.unreadable,
    }
    told = ", ".join(f"{number} {what}" for what, number in parts.items() if number)
    verb = "would be taken out" if dry_run else "taken out"
    if not told:
        return [f"thread {one.thread!r}: its entry in the registry is put right"]
    lines = [f"thread {one.thread!r}: {told} {verb}"]
    for head in one.heads:
        where = f" of namespace {head.namespace!r}" if head.namespace else ""
        after = head.after or "none: nothing of it is sound"
        lines.append(f"  head{where}: {after} (was {head.before})")
    return lines


def _repair_summary(store: str, report: RepairReport, *, dry_run: bool) -> str:
    threads = f"{store}: {report.threads} threads"
    if not report.repaired and report.ok:
        return f"{threads}, sound"
    verb = "would be repaired" if dry_run else "repaired"
    where = f"; what was taken out is in {report.file}" if report.file else ""
    left = f", {len(report.left)} findings left" if report.left else ""
    return f"{threads}, {len(report.repaired)} {verb}{left}{where}"


def _repair_document(store: str, report: RepairReport, *, dry_run: bool) -> dict[str, Any]:
    return {
        "store": store,
        "ok": report.ok,
        "dry_run": dry_run,
        "threads": report.threads,
        "repaired": [_as_json(one) for one in report.repaired],
        "left": [{**asdict(one), "hint": HINTS.get(one.kind, "")} for one in report.left],
        "file": None if report.file is None else str(report.file),
    }


def _as_json(one: RepairedThread) -> dict[str, Any]:
    checkpoints = [{"namespace": ns, "checkpoint": id} for ns, id in one.checkpoints]
    return {**asdict(one), "checkpoints": checkpoints}


_NAMES = 5  # that are told


@command(Panel.STORE, "threadkeep backup sqlite:///threads.db backup.db")
def backup(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[STORE] FILE",
            help=f"STORE: the same as --url ({STORE}). FILE: where to; a backup that is"
            " there is replaced",
        ),
    ],
    *,
    form: Annotated[
        backups.Format | None,
        typer.Option(
            "--format",
            help="native: the store's own; bundle: for any kind of store. Default: native where"
            " there is such a format, and the file's name does not end in .tkb",
        ),
    ] = None,
    pg_bin: Programs = "",
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Write all threads of a store to a file, while programs use it.

    Exit code 1: of some it holds only where they are, as their values lie in the cold store.
    """
    *store, file = places
    if len(store) > 1:
        raise typer.BadParameter("at most a store and a file")
    output = Output(as_json=as_json)
    with output.progress() as told:
        taken = backups.back_up(
            url_of(url, *store),
            Path(file),
            told,
            form=form,
            programs=pg_bin,
        )
    document = {"file": file, "kind": taken.kind.name.lower(), "bytes": taken.size}
    threads = "" if taken.threads is None else f"{taken.threads} threads, "
    line = clean(f"{file}: {threads}{taken.size} bytes, {taken.kind.value}")
    output.tell(
        {**document, "threads": taken.threads, "away": taken.away}, line, *_left_out_backup(taken)
    )
    return 1 if taken.away else 0


def _left_out_backup(taken: backups.BackedUp) -> Iterator[str]:
    """What lies elsewhere, and what to do about it."""
    if not taken.away:
        return
    names = ", ".join(taken.away[:_NAMES]) + (", ..." if len(taken.away) > _NAMES else "")
    yield clean(f"values of {some(len(taken.away), 'thread')} lie in the cold store: {names}")
    yield "keep the cold store with this file; or bring them back first, and do it again:"
    yield clean(f"threadkeep restore --thread {taken.away[0]} --cold URL")


@command(Panel.STORE, "threadkeep restore backup.tkb redis://localhost:6379/0")
def restore(
    file: Annotated[Path | None, typer.Argument(help="what threadkeep backup has written")] = None,
    store: UrlArgument = None,
    *,
    thread: Annotated[
        str | None,
        typer.Option(
            "--thread",
            help="bring this archived thread back instead",
            autocompletion=thread_ids,
        ),
    ] = None,
    cold: Cold = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="remove what stands there: the whole store; for a bundle the threads that it has",
        ),
    ] = False,
    pg_bin: Programs = "",
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Fill a store from a backup, or bring an archived thread back."""
    output = Output(as_json=as_json)
    if (file is None) == (thread is None):
        hint = "Use the file of a backup, or --thread and the id of an archived thread."
        raise InvalidArgumentError("It is not clear what is to be restored.", hint=hint)
    if file is None or thread is not None:
        with writing(url_of(url), cold) as saver:
            one = saver.threads.restore(str(thread))
        output.tell(document(one), in_a_line(one))
        return 0
    place = url_of(url, store)
    with output.progress() as told:
        done = backups.restore(file, place, told, replace=replace, programs=pg_bin)
    known = f", {done.known} were there already" if done.known else ""
    line = "restored" if done.threads is None else f"{done.threads} threads restored{known}"
    output.tell({"file": str(file), "threads": done.threads, "known": done.known}, line)
    return 0


@command(Panel.STORE, "threadkeep migrate postgresql://owner@localhost/app?schema=agents")
def migrate(store: UrlArgument = None, *, url: Url = None, as_json: AsJson = False) -> int:
    """Make the tables of a database, or bring them to this release's version."""
    place = url_of(url, store)
    with made(place) as saver:
        saver.setup()
    document = {"store": shown(place), "migrated": True}
    Output(as_json=as_json).tell(document, "the tables are of this release")
    return 0
