"""The command that rewrites stored values in the shapes of the program."""

from __future__ import annotations

from dataclasses import asdict

from threadkeep.cli.app import command
from threadkeep.cli.parameters import DRY_RUN, option, thread_ids
from threadkeep.cli.stores import Session, public_name
from threadkeep.cli.terminal import plural, table
from threadkeep.errors import InvalidArgumentError, ThreadkeepError
from threadkeep.threads import UpgradeReport


@command(
    "threadkeep upgrade threads.db --migrations shop.state:migrations --dry-run",
    cold=True,
    imports=True,
)
def upgrade(
    session: Session,
    *,
    threads: list[str] | None = option(
        "--thread ID", "Only this thread. Repeatable.", autocompletion=thread_ids
    ),
    dry_run: bool = DRY_RUN,
) -> int:
    """Rewrite stored values by your program's migrations. Exit code 1: some could not be."""
    if session.migrations is None:
        raise InvalidArgumentError(
            "No migrations are given.",
            hint="Name the threadkeep.Migrations of your program: --migrations MODULE:NAME.",
        )
    with session.progress() as progress, session.open(read_only=dry_run) as saver:
        report = saver.threads.upgrade(threads or None, dry_run=dry_run, progress=progress)
    document = {
        "store": public_name(session.store_url()),
        "ok": report.ok,
        "dry_run": dry_run,
        "threads": report.threads,
        "upgraded": [asdict(one) for one in report.upgraded],
        "failed": [_error(error) for error in report.failed],
    }
    rows = [(one.thread, one.values, one.checkpoints, one.writes) for one in report.upgraded]
    failures = [f"{error} " for error in report.failed]
    session.print(
        document,
        table(("thread", "values>", "checkpoints>", "writes>"), rows),
        *[" ".join(text.split()) for text in failures],
        _summary(report, dry_run=dry_run),
    )
    return 0 if report.ok else 1


def _error(error: ThreadkeepError) -> dict[str, str | None]:
    names = ("message", "thread", "namespace", "checkpoint", "channel")
    return {"type": type(error).__name__, **{name: getattr(error, name) for name in names}}


def _summary(report: UpgradeReport, *, dry_run: bool) -> str:
    verb = "Would rewrite" if dry_run else "Rewrote"
    done = f"{verb} {len(report.upgraded)} of {plural(report.threads, 'thread')}."
    failed = f" Not migrated: {plural(len(report.failed), 'thread')}." if report.failed else ""
    return done + failed
