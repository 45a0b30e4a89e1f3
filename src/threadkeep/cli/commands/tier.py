"""`threadkeep tier`: threads, and old values of threads in use, where they belong.

Invariant: what goes is told before it goes, if that is asked for, and afterwards.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from threadkeep.cli import policies
from threadkeep.cli.app import Panel, command
from threadkeep.cli.completion import thread_ids
from threadkeep.cli.parameters import AsJson, Cold, DryRun, Url
from threadkeep.cli.render import (
    size,
    some,
    table,
    text,
)
from threadkeep.cli.repeating import Every, repeated
from threadkeep.cli.stores import reading, url_of, writing
from threadkeep.cli.terminal import Output, clean
from threadkeep.cold.tiering import Tiering
from threadkeep.threads import TierReport


@command(Panel.STORE, "threadkeep tier --warm 7d --cold s3://bucket/agents --dry-run")
def tier(  # noqa: PLR0913 - a limit each
    threads: Annotated[
        list[str] | None,
        typer.Argument(metavar="[THREAD...]", help="only these", autocompletion=thread_ids),
    ] = None,
    *,
    warm: Annotated[
        str | None,
        typer.Option("--warm", metavar="TIME", help="what is in use stays: 1d, if nothing is said"),
    ] = None,
    archive: Annotated[
        bool | None,
        typer.Option("--archive/--no-archive", help="whether threads go that are not in use"),
    ] = None,
    offload: Annotated[
        bool | None,
        typer.Option("--offload/--no-offload", help="whether old values of the others go"),
    ] = None,
    offload_over: Annotated[
        int | None,
        typer.Option("--offload-over", metavar="N", help="bytes; those that are larger: 65536"),
    ] = None,
    dry_run: DryRun = False,
    every: Every = None,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Move into the cold store what is not in use: threads, and old values of others."""
    given = {"warm": warm, "archive": archive, "offload": offload, "offload_over": offload_over}
    how = policies.tiering({name: one for name, one in given.items() if one is not None})
    place, output = url_of(url), Output(as_json=as_json)
    once = partial(_move, place, cold, how, threads or None, output, dry_run=dry_run)
    return repeated(once, every, as_json=as_json)


def _move(
    place: str,
    cold: str | None,
    how: Tiering,
    threads: list[str] | None,
    output: Output,
    *,
    dry_run: bool,
) -> int:
    opened = reading if dry_run else writing
    with output.progress() as told, opened(place, cold) as saver:
        report = saver.threads.tier(how, threads=threads, dry_run=dry_run, progress=told)
    output.tell(_document(report), *_drawn(report))
    return 1 if report.skipped else 0


def _document(report: TierReport) -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "looked_at": report.looked_at,
        "bytes": report.bytes,
        "archived": [asdict(one) for one in report.archived],
        "offloaded": [asdict(one) for one in report.offloaded],
        "shared": list(report.shared),
        "skipped": [asdict(one) for one in report.skipped],
    }


def _drawn(report: TierReport) -> list[Any]:
    rows = [(text(one.thread), size(one.bytes), "archived") for one in report.archived]
    rows += [(text(one.thread), size(one.bytes), "old values") for one in report.offloaded]
    rows += [(text(one), "", "left: it shares its values with forks") for one in report.shared]
    rows += [(text(one.thread), "", _remark(one.skipped)) for one in report.skipped]
    would = "would be " if report.dry_run else ""
    line = (
        f"of {some(report.looked_at, 'thread')} {len(report.archived)} {would}archived,"
        f" old values of {len(report.offloaded)} {would}moved: {size(report.bytes)} bytes"
    )
    return [table(("thread", "bytes>", ""), rows), line] if rows else [line]


def _remark(why: str | None) -> str:
    return clean(f"skipped: {why}")
