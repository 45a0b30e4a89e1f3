"""Commands that move threads between stores and files: export, import, adopt, leave, mirror."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from threadkeep._core.engine.thread_entry import Lifecycle
from threadkeep.cli.app import command
from threadkeep.cli.ids import whole_threads
from threadkeep.cli.parameters import (
    DRY_RUN,
    FULL,
    PLAIN,
    STORE,
    WITH_METADATA,
    WITH_TAGS,
    argument,
    flag,
    option,
    parse_metadata,
    thread_ids,
)
from threadkeep.cli.stores import (
    KEY_HELP,
    Session,
    check_exists,
    is_same,
    langgraph_key,
    names_store,
    open_existing,
    open_target,
    public_name,
)
from threadkeep.cli.terminal import Drawn, plural, skipped_lines, table, text
from threadkeep.errors import InvalidArgumentError, ThreadNotFoundError
from threadkeep.threads import AdoptReport, Filters, LeaveReport, MirrorReport
from threadkeep.threads.transfer.bundles import check_is_bundle

_SAVED = [state for state in Lifecycle if state not in (Lifecycle.CREATED, Lifecycle.DELETED)]


@command("threadkeep export threads.db 42 43 refunds.tkb", cold=True)
def export(
    session: Session,
    places: list[str] = argument(
        "[THREAD...] FILE",
        "Thread ids, and the bundle to write. An existing bundle is replaced.",
        autocompletion=thread_ids,
    ),
    *,
    all_threads: bool = flag("--all", "Export all threads."),
    tag: list[str] | None = WITH_TAGS,
    metadata: list[str] | None = WITH_METADATA,
    plain: bool = PLAIN,
) -> int:
    """Export threads to a bundle, a file for any kind of store.

    Programs may keep running. Exit code 1: damaged threads were skipped.
    """
    *threads, file = places
    filters: Filters = {
        "state": _SAVED,
        "tags": tag or (),
        "metadata": parse_metadata("--metadata", metadata),
    }
    has_filters = bool(tag or metadata)
    if sum(map(bool, (threads, all_threads, has_filters))) != 1:
        hint = "Use ids before the file, or --all, or --tag and --metadata."
        raise InvalidArgumentError("Say which threads to export.", hint=hint)
    with session.open_to_read() as saver, session.progress() as progress:
        archived: list[str] = []
        if has_filters:
            found = list(saver.threads.scan(**filters))
            if not found:
                raise ThreadNotFoundError("No threads match.", hint="Nothing was written.")
            archived = [one.id for one in found if one.state == Lifecycle.ARCHIVED]
            threads = [one.id for one in found if one.state != Lifecycle.ARCHIVED]
        ids = None if all_threads else whole_threads(saver, threads)
        done = saver.threads.export_bundle(ids, file, plain=plain, progress=progress)
    archived += done.archived
    counts = f"{plural(done.checkpoints, 'checkpoint')}, {plural(done.size, 'byte')}"
    lines = [f"Exported {plural(done.threads, 'thread')} to {file} ({counts})"]
    if archived:
        skipped = plural(len(archived), "archived thread")
        lines.append(f"Skipped {skipped} (use threadkeep restore --thread first)")
    counted = {"threads": done.threads, "checkpoints": done.checkpoints, "bytes": done.size}
    lines += skipped_lines(done.skipped)
    session.print({"file": file, **counted, "archived": archived, "skipped": done.skipped}, *lines)
    return 1 if done.skipped else 0


@command("threadkeep import redis://localhost:6379/0 refunds.tkb")
def import_bundle(
    session: Session,
    file: Path = argument("FILE", "Bundle."),
    *,
    name: str | None = option("--as NAME", "New thread id, for a bundle of one thread."),
    replace: bool = flag("--replace", "Replace threads that differ. Their data is lost."),
    dry_run: bool = DRY_RUN,
) -> None:
    """Import the threads of a bundle. Run it again to finish an interrupted import."""
    url = session.store_url()
    check_is_bundle(file)
    target = session.of_tenant(open_target(url, dry_run=dry_run))
    with target as saver, session.progress() as progress:
        done = saver.threads.import_bundle(
            file, name, replace=replace, dry_run=dry_run, progress=progress
        )
    document = {"file": str(file), "dry_run": dry_run, **done._asdict()}
    lines = [f"{'Would replace' if dry_run else 'Replaced'} {name}" for name in done.replaced]
    unchanged = f"; {len(done.unchanged):,} unchanged" if done.unchanged else ""
    verb = "Would import" if dry_run else "Imported"
    lines.append(f"{verb} {plural(len(done.added), 'thread')}{unchanged}")
    session.print(document, *lines)


# -- adopt -------------------------------------------------------------------------------

KEY_FILE = option("--key-file FILE", KEY_HELP)


@command(
    "threadkeep adopt langgraph.db sqlite:///threads.db --verify",
    store=False,
    imports=True,
    migrations=False,
    tenant=True,
)
def adopt(
    session: Session,
    source: str = argument(
        "FROM",
        "Database of LangGraph's SqliteSaver or PostgresSaver: a path, sqlite:///..."
        " or postgresql://... (?schema=NAME). It is only read.",
    ),
    places: list[str] | None = argument(
        "TO [THREAD]",
        "TO: the store. Default: THREADKEEP_URL, else url in threadkeep.toml."
        " THREAD: only these threads.",
        None,
    ),
    *,
    replace: bool = flag("--replace", "Resolve conflicts: replace the threads here."),
    as_fork: bool = flag("--as-fork", "Resolve conflicts: adopt into forks named THREAD-adopted."),
    dry_run: bool = DRY_RUN,
    verify: bool = flag("--verify", "Compare each checkpoint as both savers load it."),
    key_file: Path | None = KEY_FILE,
) -> int:
    """Copy threads from LangGraph's own savers. Exit code 1: conflicts or damaged threads.

    Run it again to adopt new checkpoints, or to finish an interrupted run.
    """
    threads = places or []
    if threads and names_store(threads[0]):
        session.store, *threads = threads
    url = session.store_url()
    check_exists(source)
    target = session.of_tenant(open_target(url, dry_run=dry_run))
    with target as saver, session.progress() as progress:
        done = saver.threads.adopt(
            source,
            threads or None,
            replace=replace,
            as_fork=as_fork,
            dry_run=dry_run,
            verify=verify,
            key=langgraph_key(key_file),
            progress=progress,
        )
    names = {"from": public_name(source), "to": public_name(url), "dry_run": dry_run}
    session.print({**names, **asdict(done)}, *_adopt_lines(done, dry_run=dry_run))
    return 1 if done.conflicts or done.skipped else 0


def _adopt_lines(done: AdoptReport, *, dry_run: bool) -> Iterator[Drawn]:
    rows = [(name, "replaced", "") for name in done.replaced]
    rows += [(name, "forked", f"as {fork}") for name, fork in done.forks.items()]
    rows += [(name, "conflict", reason) for name, reason in done.conflicts.items()]
    rows += [(name, "skipped", reason) for name, reason in done.skipped.items()]
    yield table(("thread", "here", ""), rows)
    checkpoints = f"{plural(done.checkpoints, 'checkpoint')} from {plural(done.threads, 'thread')}"
    yield ", ".join([f"{'Would adopt' if dry_run else 'Adopted'} {checkpoints}", *_counts(done)])
    if done.conflicts:
        yield "Conflicts were not changed here. To keep both, add their ids and --as-fork."
        yield "To replace the threads here, add their ids and --replace."
    if done.plain:
        yield f"{plural(done.plain, 'value')} of the source were not encrypted"
    for name in done.deleted:
        yield f"Skipped {name}: it was deleted here. To adopt it again, add its id."


def _counts(done: AdoptReport | LeaveReport | MirrorReport) -> Iterator[str]:
    if done.unchanged:
        yield f"{done.unchanged:,} unchanged"
    if verified := getattr(done, "verified", 0):
        yield f"{verified:,} verified"
    if done.conflicts:
        yield plural(len(done.conflicts), "conflict")
    if done.skipped:
        yield f"{len(done.skipped):,} skipped"


# -- leave -------------------------------------------------------------------------------


@command("threadkeep leave threads.db sqlite:///langgraph.db --verify", cold=True, imports=True)
def leave(
    session: Session,
    target: str = argument(
        "TO",
        "Database for LangGraph's SqliteSaver or PostgresSaver: a path, sqlite:///..."
        " or postgresql://... (?schema=NAME).",
    ),
    threads: list[str] | None = argument("THREAD", "Thread ids. Default: all.", None),
    *,
    dry_run: bool = DRY_RUN,
    verify: bool = flag("--verify", "Compare each checkpoint as both savers load it."),
    key_file: Path | None = option(
        "--key-file FILE",
        "Key to encrypt values with (LANGGRAPH_AES_KEY). Default: THREADKEEP_ADOPT_KEY.",
    ),
) -> int:
    """Copy threads back into the tables of LangGraph's own savers.

    Exit code 1: conflicts, skipped threads, or differences. Run it again to copy new checkpoints,
    or to finish an interrupted run.
    """
    if is_same(session.store_url(), target):
        raise InvalidArgumentError(
            "TO is the store itself.",
            hint="Use another database, or the schema of LangGraph's tables: ?schema=public.",
        )
    if "://" not in target:
        check_exists(target, "Use an existing database; sqlite:///... creates one.")
    source = session.open(read_only=not session.cold)
    with source as saver, session.progress() as progress:
        done = saver.threads.leave(
            target,
            whole_threads(saver, threads or ()) or None,
            dry_run=dry_run,
            verify=verify,
            key=langgraph_key(key_file),
            progress=progress,
        )
    names = {"from": public_name(session.store_url()), "to": public_name(target)}
    document = {**names, "dry_run": dry_run, **asdict(done)}
    session.print(document, *_leave_lines(done, dry_run=dry_run))
    return 1 if done.conflicts or done.skipped or done.differences else 0


def _leave_lines(done: LeaveReport, *, dry_run: bool) -> Iterator[Drawn]:
    rows = [(name, "newer", "It was continued there.") for name in done.newer]
    rows += [(name, "conflict", reason) for name, reason in done.conflicts.items()]
    rows += [(name, "skipped", reason) for name, reason in done.skipped.items()]
    rows += [(name, "differs", reason) for name, reason in done.differences.items()]
    rows += [
        (name, "not held", ", ".join([f"{kind}: {count:,}" for kind, count in kinds.items()]))
        for name, kinds in done.not_held.items()
    ]
    yield table(("thread", "there", ""), rows)
    checkpoints = f"{plural(done.checkpoints, 'checkpoint')} of {plural(done.threads, 'thread')}"
    yield ", ".join([f"{'Would copy' if dry_run else 'Copied'} {checkpoints}", *_counts(done)])
    if done.plain:
        yield "Values are not encrypted there. To encrypt them, use --key-file."
    for name in done.deleted:
        yield f"{name} was deleted here, and is still there. Delete it with LangGraph's saver."


# -- mirror ------------------------------------------------------------------------------

_ROWS = 20  # shown, besides conflicts


@command("threadkeep mirror threads.db postgresql://agent@db/app --dry-run", store=False)
def mirror(
    session: Session,
    a: str = argument("A", f"Source: {STORE}. It is only read."),
    b: str = argument("B", "Target."),
    threads: list[str] | None = argument("THREAD", "Thread ids. Default: all.", None),
    *,
    delete: bool = flag("--delete", "Delete threads in B that were deleted in A."),
    replace: bool = flag("--replace", "Resolve conflicts: replace the threads in B."),
    dry_run: bool = DRY_RUN,
    full: bool = FULL,
) -> int:
    """Copy new and changed threads from A to B.

    Exit code 1: conflicts, or damaged threads. Run it again to copy new checkpoints, or to finish
    an interrupted run.
    """
    if is_same(a, b):
        raise InvalidArgumentError("A and B are the same store.", hint="Use two stores.")
    source = open_existing(a, read_only=True)
    with source, open_target(b, dry_run=dry_run) as target, session.progress() as progress:
        done = source.threads.mirror(
            target,
            threads or None,
            replace=replace,
            delete=delete,
            dry_run=dry_run,
            progress=progress,
        )
    document = {"from": public_name(a), "to": public_name(b), "dry_run": dry_run, **asdict(done)}
    session.print(document, *_mirror_lines(done, dry_run=dry_run, full=full))
    return 1 if done.conflicts or done.skipped else 0


_NOTES = {
    "archived": "It is archived in A. To include it, add its id.",
    "newer": "B has more checkpoints, or it was deleted in A (--delete).",
}


def _mirror_lines(done: MirrorReport, *, dry_run: bool, full: bool) -> Iterator[Drawn]:
    names = ("added", "extended", "replaced", "deleted", "archived", "newer")
    groups: dict[str, list[str]] = {name: getattr(done, name) for name in names}
    rows = [(id, text(name), _NOTES.get(name, "")) for name, ids in groups.items() for id in ids]
    shown = rows if full else rows[:_ROWS]
    hidden = len(rows) - len(shown)
    conflict = text("conflict", "bold red")
    conflicts = [(name, conflict, reason) for name, reason in done.conflicts.items()]
    conflicts += [(name, text("skipped", "bold red"), why) for name, why in done.skipped.items()]
    yield table(("thread", "in B", ""), shown + conflicts)
    if hidden:
        yield f"... {plural(hidden, 'more thread')} (--full)"
    counts = [f"{len(ids):,} {name}" for name, ids in groups.items() if ids]
    counts += _counts(done)
    yield f"{'Dry run' if dry_run else 'Threads'}: {', '.join(counts) or 'nothing to mirror'}"
    if done.conflicts:
        yield "Conflicts were not changed in B. To copy A's threads, add their ids and --replace."
        yield "To copy B's threads to A: threadkeep mirror B A, their ids and --replace."
