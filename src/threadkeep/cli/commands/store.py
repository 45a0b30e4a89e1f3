"""Commands for a whole store: check, repair, backup, restore, migrate, grant, rotate, views..."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from threadkeep._core import texts
from threadkeep._core.engine.operation import Progress
from threadkeep._stores.open import file_of
from threadkeep._stores.sqlite.views import script
from threadkeep.cli.app import command, in_shell
from threadkeep.cli.ids import whole_thread
from threadkeep.cli.parameters import (
    DRY_RUN,
    OPTIONAL_THREAD_IDS,
    PLAIN,
    PROGRAMS,
    argument,
    flag,
    option,
    thread_ids,
)
from threadkeep.cli.stores import LEFT_OUT, Session, keys, names_store, open_target, public_name
from threadkeep.cli.terminal import plural, print_thread, skipped_lines, table
from threadkeep.errors import CorruptionError, InvalidArgumentError, NotSetUpError, OpenError
from threadkeep.roles import grant_role, revoke_role
from threadkeep.savers import backup as backups
from threadkeep.threads import RepairedThread, RepairReport
from threadkeep.threads.repair.check import CheckReport, Finding
from threadkeep.threads.repair.repair import HINTS
from threadkeep.threads.transfer.bundles import is_in_use

# -- check -------------------------------------------------------------------------------


@command("threadkeep check threads.db", cold=True)
def check(session: Session) -> int:
    """Verify every checksum and reference. Exit code 1: problems found."""
    url = session.store_url()
    before = _stamps(url)
    with session.progress() as progress:
        report = _check(session, progress)
        if not report.ok and _stamps(url) != before:
            # Another process wrote meanwhile, so the check may have read two states.
            report = _check(session, progress)
    document = {"store": public_name(url), "ok": report.ok, **asdict(report)}
    lines = [f"{finding.kind}: {finding}" for finding in report.findings]
    lines += [f"note: {note}" for note in report.notes]
    problems = plural(len(report.findings), "problem")
    found = "No problems found." if report.ok else f"Found {problems}."
    notes = f" {plural(len(report.notes), 'note')}." if report.notes else ""
    session.print(document, *lines, f"{_checked(report.threads)} {found}{notes}")
    return 0 if report.ok else 1


def _checked(threads: int) -> str:
    return f"Checked {plural(threads, 'thread')}."


def _check(session: Session, progress: Progress) -> CheckReport:
    """Check a store. A file too damaged to open is one finding."""
    try:
        with session.open(read_only=True) as saver:
            return saver.check(progress)
    except CorruptionError as exc:
        return CheckReport(0, (Finding(exc.message),))


def _stamps(url: str) -> list[tuple[int, int]]:
    """Return sizes and times of a SQLite file and its WAL. Every write changes them."""
    path = file_of(url)
    files = [] if path is None else [Path(path), Path(f"{path}-wal")]
    stats = [file.stat() for file in files if os.path.exists(file)]  # noqa: PTH110 - no error
    return [(stat.st_size, stat.st_mtime_ns) for stat in stats]


# -- repair ------------------------------------------------------------------------------


@command("threadkeep repair threads.db --dry-run", cold=True)
def repair(
    session: Session,
    threads: list[str] | None = OPTIONAL_THREAD_IDS,
    *,
    quarantine: Path | None = option(
        "--quarantine FILE",
        "File for the removed data. Default: quarantine-TIME.tkq, in the folder of a SQLite file,"
        " else in this folder.",
    ),
    dry_run: bool = DRY_RUN,
) -> int:
    """Move unreadable data into a file. Exit code 1: problems remain."""
    url = session.store_url()
    folder = Path(file_of(url) or "").parent
    file = quarantine or folder / f"quarantine-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.tkq"
    with session.open() as saver, session.progress() as progress:
        report = saver.threads.repair(
            threads or None, file=file, dry_run=dry_run, progress=progress
        )
    document = {
        "store": public_name(url),
        "ok": report.ok,
        "dry_run": dry_run,
        **asdict(report),
        "unrepaired": [
            {**asdict(one), "hint": in_shell(HINTS.get(one.kind, ""))} for one in report.unrepaired
        ],
    }
    lines = [line for one in report.repaired for line in _repair_lines(one, dry_run=dry_run)]
    lines += [f"not repaired: {finding}" for finding in report.unrepaired]
    kinds = {finding.kind for finding in report.unrepaired}
    lines += [in_shell(hint) for kind, hint in HINTS.items() if kind in kinds]
    lines.append(_repair_summary(report, dry_run=dry_run))
    session.print(document, *lines)
    return 0 if report.ok else 1


def _repair_lines(one: RepairedThread, *, dry_run: bool) -> Iterator[str]:
    counts = {
        "checkpoint": len(one.checkpoints),
        "pending write": one.writes,
        "segment": one.segments,
        "unreadable row": one.unreadable,
    }
    parts = ", ".join(plural(count, noun) for noun, count in counts.items() if count)
    if not parts:
        verb = "would correct" if dry_run else "corrected"
        yield f"thread {one.thread!r}: {verb} its entry in the registry"
        return
    yield f"thread {one.thread!r}: {'would remove' if dry_run else 'removed'} {parts}"
    for head in one.heads:
        namespace = f" of namespace {head.namespace!r}" if head.namespace else ""
        after = head.after or "none, no checkpoint is readable"
        yield f"  head{namespace}: {after} (was {head.before})"


def _repair_summary(report: RepairReport, *, dry_run: bool) -> str:
    checked = _checked(report.threads)
    if not report.repaired and report.ok:
        return f"{checked} No problems found."
    verb = "Would repair" if dry_run else "Repaired"
    repaired = f" {verb} {plural(len(report.repaired), 'thread')}." if report.repaired else ""
    left = f" {plural(len(report.unrepaired), 'problem')} left." if report.unrepaired else ""
    file = f" The removed data is in {report.file}." if report.file else ""
    return f"{checked}{repaired}{left}{file}"


# -- backup, restore, migrate ------------------------------------------------------------

_NAMES = 5  # shown of the threads in the cold store


@command("threadkeep rotate threads.db --dry-run", cold=True, tenant=False)
def rotate(
    session: Session,
    *,
    rewrite: bool = flag("--rewrite", "PostgreSQL: rewrite the tables, which locks them."),
    dry_run: bool = DRY_RUN,
) -> None:
    """Encrypt all values with the current key. Programs may keep running.

    Keys: the variable TK_KEYS, or the file that THREADKEEP_KEYS_FILE names, the current key first.
    With THREADKEEP_ALLOW_PLAINTEXT=migrate, old plain text is removed from indexes, caches and the
    store's files, too.
    """
    with session.open() as saver, session.progress() as progress:
        report = saver.rotate_keys(dry_run=dry_run, rewrite=rewrite, progress=progress)
    document = {"store": public_name(session.store_url()), **report._asdict()}
    rows = [
        f"{name or 'not encrypted'}: {texts.size(bytes)}"
        for name, bytes in sorted(report.key_bytes.items())
    ]
    if report.archives:
        rows.append(f"{plural(report.archives, 'thread')} with values in the cold store, too")
    done = "Would encrypt" if dry_run else "Encrypted"
    rows.append(f"{done} {plural(report.changed, 'value')} of {plural(report.threads, 'thread')}.")
    rows += [f"Cleared: {place}" for place in report.cleared]
    rows += [f"Remaining: {in_shell(place)}" for place in report.remains]
    session.print(document, *rows)


@command("threadkeep heads threads.db --json > heads.json")
def heads(
    session: Session,
    *,
    compare: Path | None = option(
        "--compare FILE", "Show threads that are older than in this file, as --json printed it."
    ),
) -> int:
    """Show the newest checkpoint of each thread. Exit code 1: --compare found older threads.

    Keep the result away from the store: it shows later if somebody put back older rows.
    """
    document = {"store": public_name(session.store_url())}
    recorded = None if compare is None else _recorded(compare)
    with session.open() as saver, session.progress() as progress:
        if recorded is None:
            found = saver.threads.heads(progress)
        else:
            older = saver.threads.rolled_back(recorded, progress)
    if recorded is None:
        session.print(
            {**document, "heads": found}, table(("thread", "newest checkpoint"), [*found.items()])
        )
        return 0
    rows = [(one, head or "none", recorded[one]) for one, head in older.items()]
    summary = f"Older than recorded: {len(older)} of {plural(len(recorded), 'thread')}."
    drawn = table(("thread", "newest checkpoint", "recorded"), rows)
    session.print({**document, "older": older}, drawn, summary)
    return 1 if older else 0


def _recorded(file: Path) -> dict[str, str]:
    try:
        found = json.loads(file.read_text("utf-8"))["heads"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(
            f"{file} holds no heads: {error!r:.100}",
            hint="Write it by `threadkeep heads STORE --json > FILE`.",
        ) from None
    return dict(found)


@command("threadkeep backup threads.db backup.db", tenant=False)
def backup(
    session: Session,
    file: str = argument("FILE", "Backup to write. An existing backup is replaced."),
    *,
    form: backups.Format | None = option(
        "--format native|bundle",
        "native: the database's own format. bundle: a file for any kind of store."
        " Default: native if there is one, and FILE does not end in .tkb.",
    ),
    plain: bool = PLAIN,
    pg_bin: str = PROGRAMS,
) -> int:
    """Back up all threads of a store to a file. Programs may keep running.

    Exit code 1: values in the cold store, or damaged threads, are not included.
    """
    url = session.store_url()
    with session.progress() as progress:
        taken = backups.back_up(
            url, Path(file), progress, form=form, programs=pg_bin, keys=keys(), plain=plain
        )
    document = {
        "file": file,
        "kind": taken.kind.name,
        "bytes": taken.size,
        "threads": taken.threads,
        "away": taken.away,
        "skipped": taken.skipped,
    }
    threads = "" if taken.threads is None else f"{plural(taken.threads, 'thread')} "
    summary = f"Backed up {threads}to {file} ({taken.kind.title}, {plural(taken.size, 'byte')})"
    session.print(document, summary, *_missing_lines(taken))
    return 1 if taken.away or taken.skipped else 0


def _missing_lines(taken: backups.BackupReport) -> Iterator[str]:
    yield from skipped_lines(taken.skipped)
    if taken.away:
        names = ", ".join(taken.away[:_NAMES]) + (", ..." if len(taken.away) > _NAMES else "")
        yield f"Not included: values of {plural(len(taken.away), 'thread')} in the cold store"
        yield f"  {names}"
        yield "Keep the cold store with this backup, or restore the threads and back up again:"
        yield f"  threadkeep restore --thread {taken.away[0]} --cold URL"


_ORDER = "The store comes first, then the backup: threadkeep restore STORE FILE"


def _check_order(store: str, file: str) -> None:
    """Refuse `restore FILE STORE`."""
    first, second = Path(file_of(store) or ""), Path(file)
    if "://" in file:
        raise InvalidArgumentError(f"{public_name(file)} is no backup.", hint=_ORDER)
    if not second.exists():
        raise OpenError(f"There is no file {file}.", hint=_ORDER)
    is_other = first.is_file() and not is_in_use(first)
    if is_other and (is_in_use(second) or not names_store(str(first))):
        raise InvalidArgumentError(f"{first} is not a store in use.", hint=_ORDER)


@command("threadkeep restore redis://localhost:6379/0 backup.tkb", cold=True, tenant=False)
def restore(
    session: Session,
    file: str | None = argument("FILE", "Backup.", None),
    *,
    thread: str | None = option(
        "--thread THREAD", "Restore this archived thread instead.", autocompletion=thread_ids
    ),
    replace: bool = flag(
        "--replace", "Replace the whole store, or from a bundle only its threads."
    ),
    pg_bin: str = PROGRAMS,
) -> None:
    """Restore a store from a backup, or a thread from the cold store."""
    if file is None and thread is None and session.store not in (None, LEFT_OUT):
        file, session.store = session.store, None
    if file is not None and thread is None:
        url = session.store_url()
        _check_order(url, file)
        with session.progress() as progress:
            done = backups.restore(
                Path(file), url, progress, replace=replace, programs=pg_bin, keys=keys()
            )
        what = "the store" if done.threads is None else plural(done.threads, "thread")
        unchanged = f"; {done.unchanged:,} unchanged" if done.unchanged else ""
        document = {"file": file, "threads": done.threads, "unchanged": done.unchanged}
        session.print(document, f"Restored {what} from {file}{unchanged}")
    elif thread is not None and file is None:
        with session.open() as saver:
            info = saver.threads.restore(whole_thread(saver, thread))
        print_thread(session, info)
    else:
        raise InvalidArgumentError("Use either the file of a backup or --thread.")


@command("threadkeep migrate postgresql://owner@localhost/app?schema=agents", tenant=False)
def migrate(session: Session) -> None:
    """Create or update the tables of a database."""
    url = session.store_url()
    path = file_of(url)
    is_new = path is not None and not Path(path).exists()
    with open_target(url) as saver:
        is_set_up = path is not None
        if path is None:
            with suppress(NotSetUpError):
                is_set_up = saver.threads.count() >= 0
        saver.setup()
    summary = "The tables are up to date" if is_set_up else "Created the tables"
    document = {"store": public_name(url), "migrated": True, "created": is_new or not is_set_up}
    session.print(document, f"Created {path}" if is_new else summary)


@command("threadkeep grant postgresql://owner@localhost/app --role acme_app --tenant acme")
def grant(
    session: Session,
    *,
    role: str = option("--role ROLE", "Existing role of PostgreSQL.", ...),
    all_tenants: bool = flag("--all-tenants", "Give it the rows of all tenants instead."),
    is_revoked: bool = flag("--revoke", "Take all of its rights instead."),
) -> None:
    """Limit a PostgreSQL role to the rows of one tenant.

    Row-level security does it. Run the command again after an upgrade of threadkeep.
    """
    if (session.tenant is not None) + all_tenants + is_revoked != 1:
        raise InvalidArgumentError(
            "The command needs one kind of rights.", hint="Use --tenant, --all-tenants or --revoke."
        )
    if is_revoked:
        revoke_role(session.store_url(), role)
    else:
        grant_role(session.store_url(), role, tenant=session.tenant)
    rows = "no rows" if is_revoked else "the rows of all tenants"
    rows = rows if session.tenant is None else f"the rows of the tenant {session.tenant}"
    document = {"role": role, "tenant": session.tenant, "revoked": is_revoked}
    session.print(document, f"{role} can use {rows}")


@command("threadkeep views | sqlite3 threads.db", store=False)
def views(session: Session) -> None:
    """Print SQL of views of threads, checkpoints, writes and segments.

    Run it on a SQLite file.
    """
    sql = script()
    session.print({"sql": sql}, sql)
